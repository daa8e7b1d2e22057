"""A shop under eight rules, alone and in pairs: what each asks of a slot, and what was drawn there.

An oracle beside the service says whether rules can hold together: a linear program over the chances
of the arms that are left in a slot.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import exp
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy.optimize import linprog
from scipy.stats import chi2

from service.bandits.rules import Scores
from service.decide.scoring import decide
from service.state.decider import Decider
from service.state.events import ArmUpserted
from service.state.fold import State
from tests.support.chances import LEAST_EXPECTED, cells_of
from tests.unit.test_rulebook import ARMS, DE, NOON, POLICIES, learn, names, ruled, state_with

Rules = Mapping[str, Mapping[str, Any]]

LEARNED = ("linucb", "lints", "squarecb", "auto")
CLICKS = {"ball": 2, "rope": 0, "bone": 4, "fish": 3, "nest": 1}
"""Rewards of 1 among the 5 that each policy learned of an arm."""
LATE = {"kind": "toy", "stock": 2.0, "brand": "Dawn"}
"""An arm that came when the shop was open: the only new one."""
SHOP: dict[str, dict[str, Any]] = {**ARMS, "late": LATE}
STOCKED = {arm for arm, values in SHOP.items() if values.get("stock", 0) > 0}

RULES: Rules = {
    "stocked": {"eligible_if": "stock > 0"},
    "pinned": {"pin": {"arm": "rope", "share": 0.15}},
    "bone": {"cap": {"arm": "bone", "share": 0.3}},
    "food": {"cap": {"of": "kind", "is": "food", "share": 0.25}},
    "fish": {"floor": {"arm": "fish", "share": 0.3}},
    "newcomers": {"floor": {"of": "new", "younger_than": "12h", "share": 0.9}},
    "even": {"explore": {"share": 0.5}},
    "brands": {"at_most": {"of": "brand", "per_slate": 1}},
}
PRECEDENCE = ("eligible", "at_most", "pin", "cap", "floor", "explore")
SLATE = 3


@cache
def rules_of(slots: int) -> Rules:
    """Return the rules; of slates, shares hold in every slot, and the pin in the second."""
    if slots == 1:
        return RULES
    found = dict[str, Mapping[str, Any]]()
    for name, rule in RULES.items():
        match rule:
            case {"pin": pin}:
                found[name] = {"pin": {**pin, "slot": 2}}
            case {"eligible_if": _} | {"at_most": _}:
                found[name] = rule
            case _:
                found[name] = {
                    verb: {**settings, "slots": "all"} for verb, settings in rule.items()
                }
    return found


def verb_of(rule: Mapping[str, Any]) -> str:
    return next((verb for verb in PRECEDENCE if verb in rule), "eligible")


SETS: list[tuple[str, ...]] = [*((name,) for name in RULES), *combinations(RULES, 2)]
"""Each rule, and the 28 pairs."""
TURNED = [each[::-1] for each in SETS if len(each) > 1]
"""The pairs in the other order of the file."""
LEVEL = 0.001 / (len(LEARNED) * len(SETS) * 3)
"""Level of a test, for 0.001 over all: of single choices, of slates and of second slots."""
JOINT_LEVEL = 0.001 / (len(LEARNED) * 2)
"""Level of the tests of a policy together, of single choices and of slates."""


@cache
def shop(chosen: tuple[str, ...], slots: int) -> State:
    """The shop under some of the rules, in this order; its policies have learned, and are done."""
    every = rules_of(slots)
    policies = {name: POLICIES[name] for name in LEARNED}
    state = state_with({name: every[name] for name in chosen}, policies=policies)
    for arm, clicks in CLICKS.items():
        learn(state, arm, 1.0, times=clicks)
        learn(state, arm, 0.0, times=5 - clicks)
    features = {"kind": LATE["kind"]}
    attributes = {name: LATE[name] for name in ("stock", "brand")}
    event = ArmUpserted(at=NOON - 3_600, arm="late", features=features, attributes=attributes)
    state.apply(state.position + 1, event)
    return state


# -- the oracle ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a rule asks of a slot: arms whose chances sum to within bounds."""

    rule: str
    arms: frozenset[str]
    least: float
    most: float


def slot_of(
    chosen: Sequence[str], slots: int, before: Sequence[str]
) -> tuple[list[str], list[Asked]]:
    """Return the arms of the slot after others, and what the rules ask of it."""
    rules = [(name, rules_of(slots)[name]) for name in chosen]
    left = [arm for arm in SHOP if arm not in before]
    for _, rule in rules:
        left = [arm for arm in left if _may_follow(arm, before, rule)]
    return left, [each for name, rule in rules for each in _asks(name, rule, left, before)]


def _may_follow(arm: str, before: Sequence[str], rule: Mapping[str, Any]) -> bool:
    match rule:
        case {"eligible_if": _}:
            return arm in STOCKED
        case {"at_most": _}:
            return SHOP[arm]["brand"] not in {SHOP[other]["brand"] for other in before}
        case {"pin": pin}:
            return arm != pin["arm"] or len(before) + 1 >= pin.get("slot", 1)
    return True


def _asks(
    name: str, rule: Mapping[str, Any], left: Sequence[str], before: Sequence[str]
) -> Iterator[Asked]:
    match rule:
        case {"pin": {"arm": arm, "share": share, **where}}:
            if arm not in before and len(before) + 1 == where.get("slot", 1):
                yield Asked(name, frozenset([arm]), share, share)
        case {"cap": {"share": share, **about}}:
            yield Asked(name, _about(about), 0.0, share)
        case {"floor": {"share": share, **about}}:
            if _about(about) - {*before}:
                yield Asked(name, _about(about), share, 1.0)
        case {"explore": {"share": share}}:
            for arm in left:
                yield Asked(name, frozenset([arm]), share / len(left), 1.0)


def _about(group: Mapping[str, Any]) -> frozenset[str]:
    match group:
        case {"arm": arm}:
            return frozenset([arm])
        case {"of": "new"}:
            return frozenset(["late"])
        case _:
            return frozenset(arm for arm in SHOP if SHOP[arm][group["of"]] == group["is"])


def possible(left: Sequence[str], asked: Sequence[Asked]) -> bool:
    """Say whether chances of the arms can meet all that is asked."""
    rows = np.array([[float(arm in each.arms) for arm in left] for each in asked])
    rows = rows.reshape(len(asked), len(left))
    bounds = np.array([(each.least, each.most) for each in asked]).reshape(len(asked), 2)
    found = linprog(
        np.zeros(len(left)),
        A_ub=np.concatenate([rows, -rows]),
        b_ub=np.concatenate([bounds[:, 1], -bounds[:, 0]]),
        A_eq=np.ones((1, len(left))),
        b_eq=[1.0],
        bounds=(0.0, 1.0),
    )
    return bool(found.status == 0)


@cache
def yielding(chosen: tuple[str, ...], slots: int, before: tuple[str, ...]) -> bool:
    """Say whether one of the rules has to yield in the slot after some arms."""
    return not possible(*slot_of(chosen, slots, before))


def later(chosen: Sequence[str]) -> str:
    """Return the one of the rules that yields to the others."""
    return max(
        chosen, key=lambda name: (PRECEDENCE.index(verb_of(RULES[name])), chosen.index(name))
    )


# -- draws -----------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """Slates that were shown, of one arm or more: always the same chances of the same.

    counts    by the arms of a slate
    chances   of a whole slate
    slots     of the last arm, after the ones before it
    relaxed   rules that yielded, by the arms of a slate
    """

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    chances: dict[tuple[str, ...], float] = field(default_factory=dict)
    slots: dict[tuple[str, ...], float] = field(default_factory=dict)
    relaxed: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def fit(self) -> "Fit":
        """Compare whole slates with their chances."""
        return fit_of(self.counts, self.chances)

    def fit_of_second(self) -> "Fit":
        """Compare the arms of the second slot, after the first arm that was shown most often."""
        firsts, pairs = Counter[str](), Counter[tuple[str, ...]]()
        for arms, count in self.counts.items():
            firsts[arms[0]] += count
            pairs[arms[:2]] += count
        [(most, _)] = firsts.most_common(1)
        after = Counter({arms: count for arms, count in pairs.items() if arms[0] == most})
        return fit_of(after, self.slots)


class Fit(NamedTuple):
    """A chi-square test: its statistic and degrees of freedom."""

    statistic: float
    freedom: int

    @property
    def p(self) -> float:
        return float(chi2.sf(self.statistic, self.freedom)) if self.freedom else 1.0


def fit_of(counts: Mapping[tuple[str, ...], int], chances: Mapping[tuple[str, ...], float]) -> Fit:
    """Compare counts with chances. What expects under 5 is one cell, with what was never drawn: of
    the rare, some are drawn and others are not."""
    total = sum(counts.values())
    common = [arms for arms in counts if chances[arms] * total >= LEAST_EXPECTED]
    seen, p = (np.array([each[arms] for arms in common]) for each in (counts, chances))
    rest = max(0.0, 1 - p.sum())
    observed, wanted = cells_of(np.append(seen, total - seen.sum()), np.append(p, rest))
    statistic = float((np.square(observed - wanted) / wanted).sum())
    return Fit(statistic, len(observed) - 1)


def draws(chosen: tuple[str, ...], policy: str, slots: int, count: int) -> Drawn:
    """Decide so often, each with a seed of its own, and check that every decision is within what
    the rules ask. The scores are the same each time, and found once."""
    state = shop(chosen, slots)
    found, decider = ruled(state), Decider.serving(state.learners[policy])
    context, ids = state.schema.encode_context(DE), found.candidates.ids
    scores = decider.score(context, found.candidates)
    rng, drawn = Random(f"{policy} {chosen}"), Drawn()
    arguments = decider, context, found.candidates, slots
    first = decide(*arguments, 0, limits=found.limits)[0]
    expect_within(chosen, slots, (), dict(zip(ids, first.tolist(), strict=True)))

    def known(*_: object) -> Scores:
        return scores

    with mock.patch.object(Decider, "score", known):
        for _ in range(count):
            _, slate = decide(*arguments, rng.getrandbits(63), limits=found.limits)
            arms = tuple([ids[arm] for arm in slate.arms])
            drawn.counts[arms] += 1
            if arms not in drawn.chances:
                drawn.relaxed[arms] = names(state, slate.relaxed)
            chance = exp(slate.log_chance)
            assert drawn.chances.setdefault(arms, chance) == chance
            for slot, propensity in enumerate(slate.propensities, 1):
                assert drawn.slots.setdefault(arms[:slot], propensity) == propensity
    for arms, relaxed in drawn.relaxed.items():
        befores = [arms[:slot] for slot in range(slots)]
        must = any(yielding(chosen, slots, before) for before in befores)
        assert relaxed == ([later(chosen)] if must else []), (chosen, policy, arms)
    for before in {arms[:-1] for arms in drawn.slots}:
        after = {arms[-1]: p for arms, p in drawn.slots.items() if arms[:-1] == before}
        expect_within(chosen, slots, before, after, whole=False)
    return drawn


def expect_within(
    chosen: tuple[str, ...],
    slots: int,
    before: tuple[str, ...],
    chances: Mapping[str, float],
    *,
    whole: bool = True,
) -> None:
    """Expect of the chances of a slot what all rules ask, or all but the one that yields. whole:
    they are those of all arms, else of some."""
    yields = later(chosen) if yielding(chosen, slots, before) else None
    left, asked = slot_of(chosen, slots, before)
    assert {arm for arm, p in chances.items() if p > 0} <= {*left}
    for rule, arms, least, most in asked:
        if rule != yields:
            share = sum(chances.get(arm, 0.0) for arm in arms)
            assert share <= most + 1e-9, (chosen, before, rule)
            if whole or arms <= chances.keys():
                assert share >= least - 1e-9, (chosen, before, rule)


def fits(sets: Sequence[tuple[str, ...]], policy: str, slots: int, count: int) -> dict[str, Fit]:
    """Return the tests of so many draws under each of some sets of rules: of whole slates, and of
    the second slot if there is one."""
    found = dict[str, Fit]()
    for chosen in sets:
        drawn, name = draws(chosen, policy, slots, count), f"{policy}, {' and '.join(chosen)}"
        found[f"{name}: {slots} slots"] = drawn.fit()
        if slots > 1:
            found[f"{name}: second slot"] = drawn.fit_of_second()
    return found


def expect_true(found: Mapping[str, Fit]) -> str:
    """Expect that draws have their chances, at the level of all tests together; return the least
    p-value, and that of all tests of whole slates at once."""
    least = min(found, key=lambda name: found[name].p)
    assert found[least].p > LEVEL, (least, found[least].p)
    whole = [fit for name, fit in found.items() if not name.endswith("second slot")]
    joint = Fit(sum(fit.statistic for fit in whole), sum(fit.freedom for fit in whole))
    assert joint.p > JOINT_LEVEL, joint
    return f"{len(found)} tests, least p {found[least].p:.2g} ({least}), joint p {joint.p:.3f}"
