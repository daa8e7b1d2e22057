"""Rules at work: which arms are eligible, what bounds their chances, which rules yield."""

import gc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any
from weakref import ref

import numpy as np
import pytest

from service.bandits.candidates import Candidates
from service.bandits.outcome import Outcome
from service.bandits.rules import Slate
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.errors import NoEligibleArm
from service.features.row import Row
from service.state.decider import Decider
from service.state.decisions import DecisionFacts
from service.state.events import ArmPatched, ArmRemoved, ArmUpserted, ExperimentDefined, Rewarded
from service.state.fold import State
from service.state.newness import Newness
from service.state.rulebook import Ruled, Situation

DAY = 86_400.0
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
DE, AT = {"country": "DE"}, {"country": "AT"}
ARMS = {
    "ball": {"kind": "toy", "stock": 3, "brand": "Acme"},
    "rope": {"kind": "toy", "stock": 0, "brand": "Acme"},
    "bone": {"kind": "food", "stock": 5, "brand": "Bark"},
    "fish": {"kind": "food", "brand": "Bark"},
    "nest": {"kind": "bed", "stock": 1, "brand": "Cosy", "sale": True},
}
POLICIES = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints", "draws": 64},
    "squarecb": {"kind": "squarecb"},
    "random": {"kind": "random"},
    "auto": {"kind": "auto", "min_tries": 0},
}


def state_with(
    rules: Mapping[str, Any], arms: Mapping[str, Any] = ARMS, policies: Mapping[str, Any] = POLICIES
) -> State:
    """A shop with these rules, whose policies learned that `bone` is best."""
    definition = Definition.model_validate(
        {
            "features": {
                "context": {
                    "country": {"type": "categorical", "values": ["DE", "AT"]},
                    "budget": {"type": "numeric", "default": 10, "center": 0, "scale": 10},
                },
                "arm": {"kind": {"type": "categorical", "values": ["toy", "food", "bed"]}},
            },
            "attributes": {"stock": "number", "brand": "text", "sale": "boolean"},
            "arms": arms,
            "policies": policies,
            "rules": rules,
        }
    ).completed()
    state = State("shop")
    written = definition.model_dump(mode="json")
    state.apply(
        1, ExperimentDefined(at=NOON - DAY, revision=1, schema_version=1, definition=written)
    )
    return state


def learn(state: State, arm: str, reward: float, times: int = 20) -> None:
    """Let every policy learn of an arm, in both countries in turn."""
    for number in range(times):
        context = state.schema.encode_context([DE, AT][number % 2])
        row = state.schema.row(context, state.candidates.x[state.candidates.row_of[arm]])
        for policy in state.learners:
            position = state.position + 1
            state.apply(
                position,
                Rewarded(
                    at=NOON - DAY / 2,
                    decision=f"d{position}",
                    policy=policy,
                    schema_version=1,
                    settled=[Outcome(arm=arm, row=row, reward=reward)],
                ),
            )


def ruled(state: State, context: Mapping[str, Any] = DE, at: float = NOON, **wishes: Any) -> Ruled:
    return state.rule(state.candidates, Situation(context, at, **wishes))


def eligible(state: State, context: Mapping[str, Any] = DE, **more: Any) -> list[str]:
    return [*ruled(state, context, **more).candidates.ids]


def decided(
    state: State,
    policy: str = "linucb",
    slots: int = 1,
    context: Mapping[str, Any] = DE,
    seed: int = 1,
    **more: Any,
) -> tuple[dict[str, float], Slate, Sequence[str]]:
    """The chances of the first slot by arm, what is shown, and the arms that are eligible."""
    found = ruled(state, context, **more)
    p, slate = decide(
        Decider.serving(state.learners[policy]),
        state.schema.encode_context(dict(context)),
        found.candidates,
        slots,
        seed,
        limits=found.limits,
    )
    return dict(zip(found.candidates.ids, p.tolist(), strict=True)), slate, found.candidates.ids


def names(state: State, numbers: Sequence[int]) -> list[str]:
    return [state.rulebook.names[number] for number in numbers]


# -- eligibility -----------------------------------------------------------------------------------


def test_a_condition_reads_context_features_and_attributes() -> None:
    state = state_with({"r": {"eligible_if": "country == 'AT' or kind == 'toy' and stock > 0"}})
    assert eligible(state, DE) == ["ball"]
    assert eligible(state, AT) == [*ARMS]


def test_a_default_stands_in_for_a_value_of_the_context_that_is_left_out() -> None:
    state = state_with({"r": {"eligible_if": "budget < 20 or kind == 'bed'"}})
    assert eligible(state) == [*ARMS]
    assert eligible(state, {**DE, "budget": 30.0}) == ["nest"]


def test_an_arm_is_not_eligible_where_a_value_is_missing_and_that_is_counted() -> None:
    found = ruled(state_with({"r": {"eligible_if": "stock > 0"}}))
    assert [*found.candidates.ids] == ["ball", "bone", "nest"]
    assert (found.removed, found.unknown) == ((("r", 2),), (("r", 1),))


@pytest.mark.parametrize(
    ("about", "kept"),
    [
        ({"arm": "ball"}, ["rope", "bone", "fish", "nest"]),
        ({"of": "brand", "is": "Acme"}, ["bone", "fish", "nest"]),
        ({"of": "kind", "is": "food"}, ["ball", "rope", "nest"]),
        ({"of": "sale"}, ["ball", "rope", "bone", "fish"]),
    ],
)
def test_a_condition_is_about_the_arms_that_are_named(
    about: dict[str, str], kept: list[str]
) -> None:
    rules = {"r": {**about, "eligible_if": "country == 'AT'"}}
    assert eligible(state_with(rules)) == kept


def test_arms_are_eligible_from_a_time_until_another_one() -> None:
    times = {"from": "2026-12-01T00:00:00+01:00", "until": "2026-12-02T00:00:00Z"}
    state = state_with({"r": {"arm": "ball", **times}})
    begin = datetime(2026, 11, 30, 23, tzinfo=UTC).timestamp()
    for at, there in [(begin - 1, False), (begin, True), (NOON, True), (NOON + DAY, False)]:
        assert ("ball" in eligible(state, at=at)) is there
        assert eligible(state, at=at)[-1] == "nest"


def test_a_request_excludes_arms_and_names_those_that_it_wants() -> None:
    state = state_with({})
    assert eligible(state, exclude=("ball", "gone")) == ["rope", "bone", "fish", "nest"]
    assert eligible(state, only=("nest", "ball", "gone")) == ["ball", "nest"]
    assert eligible(state, only=("nest", "ball"), exclude=("ball",)) == ["nest"]


def test_where_no_arm_is_left_the_rule_that_removed_the_last_ones_is_named() -> None:
    state = state_with({"a": {"eligible_if": "kind == 'toy'"}, "b": {"eligible_if": "stock > 3"}})
    with pytest.raises(NoEligibleArm, match="no arm is eligible: 'b' removed the last 2 arms"):
        ruled(state)
    with pytest.raises(NoEligibleArm, match="'exclude' removed the last 5 arms"):
        ruled(state, exclude=tuple(ARMS))


def test_a_changed_attribute_counts_at_once() -> None:
    state = state_with({"r": {"eligible_if": "stock > 0"}})
    assert "rope" not in eligible(state)
    event = ArmUpserted(at=NOON, arm="rope", features={"kind": "toy"}, attributes={"stock": 2})
    state.apply(2, event)
    assert "rope" in eligible(state)


def test_an_arm_whose_attribute_changed_is_of_another_group_at_once() -> None:
    cap = {"of": "brand", "is": "Acme", "share": 0.1}
    state = best_bone({"stocked": {"eligible_if": "stock > 0"}, "r": {"cap": cap}})
    assert decided(state)[0]["bone"] > 0.5
    state.apply(
        state.position + 1,
        ArmPatched(at=NOON, arm="bone", features={}, attributes={"brand": "Acme"}),
    )
    chances = decided(state)[0]
    assert chances["bone"] + chances["ball"] == pytest.approx(0.1)


def test_arms_that_stay_eligible_are_the_same_candidates_in_another_context() -> None:
    """So that their decisions are made together."""
    state = state_with({"r": {"eligible_if": "stock <= budget"}, "c": {"explore": {"share": 0.1}}})
    one, other = ruled(state, {**DE, "budget": 3.5}), ruled(state, {**DE, "budget": 4.0})
    assert one.candidates is other.candidates
    assert one.limits is other.limits
    less = ruled(state, {**DE, "budget": 1.0})
    assert [*less.candidates.ids] == ["rope", "nest"]
    assert less.removed == (("r", 3),)


def test_what_is_not_eligible_is_no_candidate_and_has_no_chance() -> None:
    state = state_with({"r": {"eligible_if": "stock > 0"}})
    for policy in state.learners:
        chances, _, _ = decided(state, policy)
        assert chances.keys() == {"ball", "bone", "nest"}
        assert sum(chances.values()) == pytest.approx(1)


# -- shares ----------------------------------------------------------------------------------------


def best_bone(rules: Mapping[str, Any]) -> State:
    state = state_with(rules)
    for arm in ARMS:
        learn(state, arm, float(arm == "bone"))
    return state


@pytest.mark.parametrize("policy", POLICIES)
def test_each_rule_holds_and_says_so(policy: str) -> None:
    state = best_bone(
        {
            "pinned": {"pin": {"arm": "rope", "share": 0.15}},
            "capped": {"cap": {"arm": "bone", "share": 0.3}},
            "food": {"cap": {"of": "kind", "is": "food", "share": 0.4}},
            "bed": {"floor": {"arm": "nest", "share": 0.25}},
            "even": {"explore": {"share": 0.2}},
        }
    )
    chances, slate, _ = decided(state, policy)
    assert chances["rope"] == 0.15
    assert chances["bone"] <= 0.3 + 1e-12
    assert chances["bone"] + chances["fish"] <= 0.4 + 1e-12
    assert chances["nest"] >= 0.25 - 1e-12
    assert min(chances.values()) >= 0.04 - 1e-12
    assert slate.relaxed == ()
    assert "pinned" in names(state, slate.held)
    if policy != "random":
        assert {"capped", "food"} & {*names(state, slate.held)}


def test_a_rule_holds_in_its_segment_and_its_time() -> None:
    cap = {"arm": "bone", "share": 0.3, "if": "country == 'DE'"}
    state = best_bone({"r": {"cap": cap, "until": "2026-12-02T00:00:00Z"}})
    assert decided(state)[0]["bone"] == pytest.approx(0.3)
    for more in ({"context": AT}, {"at": NOON + DAY}):
        assert decided(state, **more)[0]["bone"] == 0.5  # as much as its like, fish


def test_new_arms_share_a_floor_until_they_are_old_enough() -> None:
    floor = {"of": "new", "share": 0.2, "younger_than": "2d"}
    state = best_bone({"r": {"floor": floor}})
    state.apply(state.position + 1, ArmUpserted(at=NOON, arm="late", features={"kind": "toy"}))
    for at, share in [(NOON + DAY, 0.2), (NOON + 2 * DAY, 0.0)]:
        assert decided(state, at=at)[0]["late"] == pytest.approx(share)


def test_an_arm_is_new_until_so_many_of_its_rewards_have_settled() -> None:
    policies = {"linucb": {"kind": "linucb"}}
    state = state_with(
        {"r": {"floor": {"of": "new", "share": 0.2, "fewer_than": 3}}}, ARMS, policies
    )
    for arm in ARMS:
        learn(state, arm, float(arm == "bone"), times=9)
    state.apply(state.position + 1, ArmUpserted(at=NOON, arm="late", features={"kind": "toy"}))
    for _ in range(3):
        assert decided(state)[0]["late"] == pytest.approx(0.2)
        learn(state, "late", 0.0, times=1)
    assert decided(state)[0]["late"] == 0.0
    state.apply(state.position + 1, ArmRemoved(at=NOON, arm="late"))
    state.apply(state.position + 1, ArmUpserted(at=NOON, arm="late", features={"kind": "toy"}))
    assert decided(state)[0]["late"] == pytest.approx(0.2)


def test_a_corrected_reward_counts_once_and_a_withdrawn_one_not_at_all() -> None:
    newness = Newness()
    row = Row(b"", ())
    newness.settle(Outcome("ball", 1.0, row), ARMS)
    newness.settle(Outcome("ball", 0.0, row, was=1.0, since=1), ARMS)
    assert newness.settled == {"ball": 1}
    newness.settle(Outcome("ball", 0.0, row, was=0.0, since=1, withdrawn=True), ARMS)
    assert newness.settled == {"ball": 0}
    newness.settle(Outcome("rope", 1.0, row, inline=True), ARMS)
    assert newness.settled == {"ball": 0}


def test_how_new_arms_are_outlives_a_snapshot() -> None:
    state = state_with({"r": {"floor": {"of": "new", "share": 0.2, "fewer_than": 3}}})
    learn(state, "ball", 1.0, times=1)
    state.apply(state.position + 1, ArmUpserted(at=NOON, arm="late", features={"kind": "toy"}))
    restored = State.restore(state.snapshot())
    assert vars(restored.newness).keys() == vars(state.newness).keys()
    assert restored.newness.members() == state.newness.members()
    assert decided(restored)[0] == decided(state)[0]


def test_arms_that_a_policy_tries_get_their_share_within_the_rules() -> None:
    state = best_bone({"r": {"cap": {"arm": "bone", "share": 0.5}}})
    found = ruled(state)
    p, _ = decide(
        Decider.serving(state.learners["linucb"]),
        state.schema.encode_context(DE),
        found.candidates,
        1,
        1,
        DecisionFacts(untried=(1, 4)),
        found.limits,
    )
    assert p[[1, 4]].sum() >= 0.1 - 1e-12
    assert p[2] <= 0.5 + 1e-12


# -- rules that yield ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "yields"),
    [
        (
            {
                "a": {"pin": {"arm": "ball", "share": 0.7}},
                "b": {"pin": {"arm": "bone", "share": 0.6}},
            },
            "b",
        ),
        (
            {
                "a": {"floor": {"arm": "ball", "share": 0.6}},
                "b": {"pin": {"arm": "bone", "share": 0.6}},
            },
            "a",
        ),
        ({"a": {"cap": {"of": "arm", "share": 0.1}}}, "a"),
        (
            {"a": {"cap": {"of": "kind", "share": 0.2}}, "b": {"cap": {"of": "arm", "share": 0.5}}},
            "a",
        ),
        ({"a": {"eligible_if": "stock > 0"}, "b": {"pin": {"arm": "rope", "share": 0.1}}}, "b"),
        ({"a": {"eligible_if": "stock > 0"}, "b": {"floor": {"arm": "rope", "share": 0.1}}}, "b"),
        (
            {
                "a": {"cap": {"arm": "ball", "share": 0.1}},
                "b": {"floor": {"arm": "ball", "share": 0.3}},
            },
            "b",
        ),
        ({"a": {"explore": {"share": 1.0}}, "b": {"floor": {"arm": "ball", "share": 0.5}}}, "a"),
    ],
)
@pytest.mark.parametrize("policy", ["linucb", "lints", "squarecb"])
def test_the_later_rule_yields(policy: str, rules: dict[str, Any], yields: str) -> None:
    state = best_bone(rules)
    chances, slate, _ = decided(state, policy)
    assert names(state, slate.relaxed) == [yields]
    assert sum(chances.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "other",
    [
        {"at_most": {"of": "brand", "per_slate": 1}},
        {"pin": {"arm": "fish", "slot": 3, "share": 0.1}},
    ],
)
def test_a_floor_of_an_arm_that_another_rule_keeps_from_a_slot_yields(other: Any) -> None:
    floor = {"floor": {"arm": "fish", "share": 0.1, "slots": "all"}}
    state = best_bone(
        {"other": other, "floor": floor, "bone": {"pin": {"arm": "bone", "share": 1}}}
    )
    assert names(state, decided(state, slots=3)[1].relaxed) == ["floor"]


@pytest.mark.parametrize("about", [{"arm": "rope"}, {"of": "brand", "is": "Cosy"}])
def test_a_cap_of_arms_that_are_not_eligible_holds(about: dict[str, str]) -> None:
    rules = {
        "a": {"eligible_if": "stock > 1"},
        "b": {"cap": {**about, "share": 0.1}},
        "c": {"floor": {**about, "share": 0.1}},
    }
    _, slate, _ = decided(state_with(rules))
    assert slate.relaxed == (2,)


def test_a_rule_about_an_arm_that_is_no_candidate_does_not_yield() -> None:
    state = state_with({"a": {"pin": {"arm": "rope", "share": 0.1}}})
    some = state.candidates.choose(["ball", "bone"], [0, 2])
    found = state.rule(some, Situation(DE, NOON))
    _, slate = decide(
        Decider.serving(state.learners["linucb"]),
        state.schema.encode_context(DE),
        some,
        1,
        1,
        limits=found.limits,
    )
    assert slate.relaxed == ()


# -- slates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pin_gives_its_share_of_a_later_slot_and_nothing_of_those_before(policy: str) -> None:
    state = best_bone({"r": {"pin": {"arm": "bone", "slot": 2, "share": 0.4}}})
    seconds = 0
    for seed in range(200):
        chances, slate, ids = decided(state, policy, 3, seed=Random(seed).getrandbits(63))
        assert chances["bone"] == 0.0
        if ids[slate.arms[1]] == "bone":
            assert slate.propensities[1] == 0.4
            seconds += 1
    assert 40 < seconds < 120
    assert decided(state, policy, 1)[0]["bone"] > 0  # there is no second slot


@pytest.mark.parametrize("policy", POLICIES)
def test_a_slate_shows_so_many_arms_of_a_value(policy: str) -> None:
    state = best_bone({"r": {"at_most": {"of": "brand", "per_slate": 1}}})
    for seed in range(20):
        _, slate, ids = decided(state, policy, 3, seed=Random(seed).getrandbits(63))
        assert len({ARMS[ids[arm]]["brand"] for arm in slate.arms}) == 3
        assert (names(state, slate.held), slate.relaxed) == (["r"], ())
    _, slate, _ = decided(state, policy, 4)
    assert names(state, slate.relaxed) == ["r"]


def test_shares_hold_in_the_first_slot_or_in_all() -> None:
    cap = {"of": "kind", "is": "food", "share": 0.3}
    first = best_bone({"r": {"cap": cap}})
    every = best_bone({"r": {"cap": {**cap, "slots": "all"}}})
    seconds: dict[str, list[float]] = {"first": [], "all": []}
    for seed in range(40):
        for state, where in ((first, "first"), (every, "all")):
            _, slate, ids = decided(state, "linucb", 2, seed=Random(seed).getrandbits(63))
            if ids[slate.arms[0]] not in ("bone", "fish") and ids[slate.arms[1]] == "bone":
                seconds[where].append(slate.propensities[1])
    assert set(seconds["first"]) == {0.5}  # as much as its like, fish
    assert seconds["all"] == pytest.approx([0.15] * len(seconds["all"]))
    assert seconds["all"]


# -- names and places ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_the_order_of_arms_changes_no_chance(policy: str) -> None:
    rules = {
        "stock": {"eligible_if": "stock > 0"},
        "food": {"cap": {"of": "kind", "is": "food", "share": 0.4}},
        "bed": {"floor": {"of": "brand", "is": "Cosy", "share": 0.3}},
    }
    state, turned = state_with(rules), state_with(rules, dict(reversed(ARMS.items())))
    for each in (state, turned):
        learn(each, "bone", 1.0)
    mine, others = decided(state, policy)[0], decided(turned, policy)[0]
    assert mine == pytest.approx({arm: others[arm] for arm in mine}, abs=1e-12)


def test_what_was_found_is_found_anew_when_the_context_or_the_time_is_another() -> None:
    state = state_with({"r": {"eligible_if": "country == 'DE'", "arm": "ball"}})
    one = ruled(state)
    assert ruled(state, at=NOON + 1) is one
    assert ruled(state, {**DE, "budget": 3.0}) is one  # no condition reads it
    assert ruled(state, AT) is not one


def test_what_was_found_goes_with_the_candidates() -> None:
    """Also where all of them are eligible, so that a finding refers to them."""
    state = state_with({"r": {"cap": {"of": "arm", "share": 0.5}}})
    inline = {"rope": {"kind": "toy"}, "vase": {"kind": "bed"}}
    rows = np.array([state.schema.encode_arm(values) for values in inline.values()])
    outside, inside = Candidates(tuple(inline), rows), state.candidates.choose(["ball"], [0])
    state.rule(outside, Situation(DE, NOON), inline)
    state.rule(inside, Situation(DE, NOON))
    gone = ref(outside), ref(inside)
    del outside, inside
    gc.collect()
    assert [each() for each in gone] == [None, None]
