"""Rules and catalogues by chance: bounds that can hold do, what yields is said, and no more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.rules import Slate
from service.decide.scoring import decide
from service.errors import NoEligibleArm
from service.state.decider import Decider
from service.state.fold import State
from tests.statistics.ruled import PRECEDENCE, Asked, possible, verb_of
from tests.support.properties import examples
from tests.unit.test_rulebook import DE, POLICIES, decided, learn, names, ruled, state_with

KINDS, BRANDS = ("toy", "food", "bed"), ("Acme", "Bark")
SHARES = st.integers(1, 20).map(lambda twentieths: twentieths / 20)
MET = 1e-9

Rules = dict[str, dict[str, Any]]
Arms = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Shop:
    """A catalogue, rules, and rewards that all policies learned of: (arm, reward) each."""

    arms: Arms
    rules: Rules
    rewards: tuple[tuple[str, float], ...]

    def state(self, rules: Mapping[str, Any] | None = None) -> State:
        state = state_with(self.rules if rules is None else rules, self.arms)
        for arm, reward in self.rewards:
            learn(state, arm, reward, times=1)
        return state

    def renamed(self, order: Random) -> tuple["Shop", dict[str, str]]:
        """The same shop with other names in another order, and the new name of each arm."""
        turned = [*self.arms]
        order.shuffle(turned)
        new = {arm: f"renamed {number}" for number, arm in enumerate(turned)}
        rules = {
            name: {
                verb: {**about, "arm": new[about["arm"]]} if "arm" in about else about
                for verb, about in rule.items()
            }
            if "eligible_if" not in rule
            else rule
            for name, rule in self.rules.items()
        }
        rewards = tuple((new[arm], reward) for arm, reward in self.rewards)
        return Shop({new[arm]: self.arms[arm] for arm in turned}, rules, rewards), new


@st.composite
def catalogues(draw: st.DrawFn) -> Arms:
    arms: Arms = {}
    for number in range(draw(st.integers(5, 12))):
        arm: dict[str, Any] = {"kind": draw(st.sampled_from(KINDS))}
        if brand := draw(st.sampled_from([*BRANDS, None])):
            arm["brand"] = brand
        if (stock := draw(st.sampled_from([None, 0, 1, 2]))) is not None:
            arm["stock"] = stock
        arms[f"arm {number}"] = arm
    return arms


def bounds_about(arms: Sequence[str], ofs: Mapping[str, Sequence[str]]) -> st.SearchStrategy[Any]:
    """Caps and floors of an arm, of each arm, and of the arms of a value."""
    groups = [
        *({"arm": arm} for arm in arms),
        {"of": "arm"},
        *({"of": of, "is": value} for of, values in ofs.items() for value in values),
    ]
    return st.builds(
        lambda verb, about, share: {verb: {**about, "share": share}},
        st.sampled_from(["cap", "floor"]),
        st.sampled_from(groups),
        SHARES,
    )


@st.composite
def shops(draw: st.DrawFn, ofs: Mapping[str, Sequence[str]]) -> Shop:
    """ofs: the values by which rules may group arms."""
    arms = draw(catalogues())
    rule = st.one_of(
        bounds_about([*arms], ofs),
        st.builds(lambda arm, share: {"pin": {"arm": arm, "share": share}},
                  st.sampled_from([*arms]), SHARES),
        st.builds(lambda share: {"explore": {"share": share}}, SHARES),
        st.builds(lambda least: {"eligible_if": f"stock >= {least}"}, st.integers(0, 2)),
    )  # fmt: skip
    rules = draw(st.lists(rule, max_size=6))
    rewards = draw(st.lists(st.tuples(st.sampled_from([*arms]), st.sampled_from([0.0, 1.0])),
                            max_size=12))  # fmt: skip
    return Shop(arms, {f"r{number}": rule for number, rule in enumerate(rules)}, tuple(rewards))


NESTED = {"kind": KINDS}
"""Groups that share no arm: with those of one arm, or of all, all bounds that can hold do."""
OVERLAPPING = {"kind": KINDS, "brand": BRANDS}


def asked(shop: Shop, arms: Sequence[str]) -> dict[str, list[Asked]]:
    """What each rule asks of the eligible arms, in the order in which they yield, the last first
    to."""
    order = sorted(shop.rules, key=lambda name: PRECEDENCE.index(verb_of(shop.rules[name])))
    return {name: [*_asks(shop, name, arms)] for name in order}


def _asks(shop: Shop, name: str, arms: Sequence[str]) -> list[Asked]:
    rule = shop.rules[name]
    verb = verb_of(rule)
    if verb == "eligible":
        return []
    share = rule[verb]["share"]
    if verb == "explore":
        return [Asked(name, frozenset([arm]), share / len(arms), 1.0) for arm in arms]
    about = rule[verb]
    if about.get("of") == "arm":
        groups = [frozenset([arm]) for arm in arms]
    elif "arm" in about:
        groups = [frozenset([about["arm"]])]
    else:
        of, value = about["of"], about["is"]
        if not any(each.get(of) == value for each in shop.arms.values()):
            return []  # nothing is of this value
        groups = [frozenset(arm for arm in arms if shop.arms[arm].get(of) == value)]
    least, most = {"pin": (share, share), "cap": (0.0, share), "floor": (share, 1.0)}[verb]
    return [Asked(name, group, least, most) for group in groups]


def decisions(
    shop: Shop, rules: Mapping[str, Any] | None = None
) -> dict[str, tuple[State, dict[str, float], Slate]]:
    """The decision of each policy; empty where no arm is eligible."""
    state = shop.state(rules)
    try:
        return {policy: (state, *decided(state, policy)[:2]) for policy in POLICIES}
    except NoEligibleArm:
        return {}


def expect_met(asks: Mapping[str, list[Asked]], chances: Mapping[str, float]) -> None:
    for each in (each for own in asks.values() for each in own):
        share = sum(chances.get(arm, 0.0) for arm in each.arms)
        assert each.least - MET <= share <= each.most + MET, each


@settings(max_examples=examples(120))
@given(shops(NESTED))
def test_bounds_that_can_hold_do_and_else_the_first_that_cannot_yields(shop: Shop) -> None:
    for state, chances, slate in decisions(shop).values():
        asks, relaxed = asked(shop, [*chances]), names(state, slate.relaxed)
        assert sum(chances.values()) == pytest.approx(1, abs=1e-12)
        assert min(chances.values()) >= 0
        expect_met({name: own for name, own in asks.items() if name not in relaxed}, chances)
        before = list[Asked]()
        for name, own in asks.items():
            before += own
            if not possible([*chances], before):
                assert next(each for each in asks if each in relaxed) == name
                break
        else:
            assert relaxed == []


@settings(max_examples=examples(120))
@given(shops(OVERLAPPING))
def test_what_does_not_hold_where_groups_overlap_is_said(shop: Shop) -> None:
    for state, chances, slate in decisions(shop).values():
        asks, relaxed = asked(shop, [*chances]), names(state, slate.relaxed)
        assert sum(chances.values()) == pytest.approx(1, abs=1e-12)
        expect_met({name: own for name, own in asks.items() if name not in relaxed}, chances)
        if not possible([*chances], [each for own in asks.values() for each in own]):
            assert relaxed


@settings(max_examples=examples(120))
@given(shops(OVERLAPPING), st.randoms(use_true_random=False))
def test_names_and_the_order_of_arms_change_no_chance(shop: Shop, order: Random) -> None:
    other, new = shop.renamed(order)
    mine, others = decisions(shop), decisions(other)
    assert mine.keys() == others.keys()
    for policy, (_, chances, slate) in mine.items():
        _, renamed, of_renamed = others[policy]
        assert {new[arm]: p for arm, p in chances.items()} == pytest.approx(renamed, abs=1e-9)
        assert slate.relaxed == of_renamed.relaxed


@settings(max_examples=examples(120))
@given(shops(NESTED), SHARES, SHARES, st.data())
def test_a_tighter_cap_never_raises_the_chance_of_its_arm(
    shop: Shop, one: float, another: float, data: st.DataObject
) -> None:
    arm = data.draw(st.sampled_from([*shop.arms]))
    tight, loose = sorted([one, another])
    found = [
        decisions(shop, {"own": {"cap": {"arm": arm, "share": share}}, **shop.rules})
        for share in (tight, loose)
    ]
    for policy in found[0].keys() & found[1].keys():
        (_, under_tight, _), (_, under_loose, _) = (each[policy] for each in found)
        assert under_tight.get(arm, 0.0) <= under_loose.get(arm, 0.0) + MET


IDLE: Rules = {
    "elsewhere": {"cap": {"of": "arm", "share": 0.05, "if": "country == 'AT'"}},
    "past": {"floor": {"of": "kind", "is": "toy", "share": 0.9}, "until": "2026-01-01T00:00:00Z"},
    "later": {"of": "kind", "eligible_if": "country == 'DE'", "until": "2030-01-01T00:00:00Z"},
}
"""Rules of another country, of another time, and of all arms as they are."""
LOOSE: Rules = {"loose": {"cap": {"of": "arm", "share": 1.0}}}
"""A rule that holds and bounds nothing."""


@settings(max_examples=examples(120))
@given(shops({}), st.sampled_from([{}, IDLE]), st.integers(1, 3), st.integers(0, 2**63 - 1))
def test_rules_that_do_not_apply_leave_the_bits_of_every_chance(
    shop: Shop, rules: Rules, slots: int, seed: int
) -> None:
    state, bare = shop.state(rules), shop.state({})
    found = ruled(state)
    for policy in POLICIES:
        learner, context = state.learners[policy], state.schema.encode_context(DE)
        under = decide(
            Decider.serving(learner), context, found.candidates, slots, seed, limits=found.limits
        )
        own = Decider.serving(bare.learners[policy])
        without = decide(own, context, bare.candidates, slots, seed)
        assert np.array_equal(under[0], without[0])
        assert under[1] == without[1]


@settings(max_examples=examples(120))
@given(shops({}))
def test_a_rule_that_bounds_nothing_changes_no_chance(shop: Shop) -> None:
    under, without = decisions(shop, LOOSE), decisions(shop, {})
    for policy, (_, chances, slate) in under.items():
        assert chances == pytest.approx(without[policy][1], abs=1e-12)
        assert (slate.held, slate.relaxed) == ((), ())
