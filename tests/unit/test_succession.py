"""Definitions that change: what a policy learned follows the meaning of its columns."""

import copy
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.heads import DisjointRidgeHead, RidgeHead
from service.bandits.heads.averaged import AveragedHead
from service.bandits.heads.averaged_rows import MemberRows
from service.state.fold import State
from service.state.succession import obstacle
from service.state.traffic import winner
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.support.properties import examples
from tests.unit.folding import POLICIES, Log, bits, head_of, replay, shop, store_of

LINEAR: dict[str, dict[str, Any]] = {
    "shared": {"kind": "linucb"},
    "disjoint": {"kind": "lints", "disjoint": True, "draws": 16},
    "windowed": {"kind": "lints", "window": 20, "draws": 16},
    "forgetful": {"kind": "linucb", "gamma": 0.8, "decay_every": 3},
    "changing": {"kind": "linucb", "change": True},
    "greedy": {"kind": "greedy"},
    "clicks": {"kind": "popularity", "draws": 16},
}
PETS = ["cat", "dog", "fish"]


def linear(pets: list[str] = PETS[:2], **features: Any) -> dict[str, Any]:
    """The shop with linear policies, for these pets, with further features of the context."""
    definition = shop(**copy.deepcopy({name: LINEAR[name] for name in sorted(LINEAR)}))
    for policy in definition["policies"].values():
        policy["learns_from"] = "all"
    definition["features"]["context"]["pet"]["values"] = pets
    definition["features"]["context"] |= features
    return definition


def visit(log: Log, rng: Random, **context: Any) -> None:
    arm, seen = rng.choice(sorted(log.state.arms)), {"pet": rng.choice(PETS[:2]), **context}
    log.settle("shared", {arm: float(rng.random() < 0.4)}, {"age": float(rng.randrange(9)), **seen})


def visited(definition: dict[str, Any], visits: int = 30, **context: Any) -> Log:
    log, rng = Log(), Random(0)
    log.define(definition)
    for _ in range(visits):
        visit(log, rng, **context)
    return log


def named_sums(state: State, policy: str) -> dict[Any, float]:
    """A and b of a policy's head, by the names of their columns, and its counts."""
    learner = state.learners[policy]
    head, view = learner.active.head, learner.view
    names = [view.column_name(column) for column in range(view.width)]
    assert isinstance(head, RidgeHead | DisjointRidgeHead)
    found: dict[Any, float] = {"n": head.health().effective_count}
    stacks = head.A.reshape(-1, view.width, view.width), head.b.reshape(-1, view.width)
    if isinstance(head, DisjointRidgeHead):
        stacks = head.A[: head.count], head.b[: head.count]
    for arm, (own, right) in enumerate(zip(*stacks, strict=True)):
        for row, name in enumerate(names):
            found[arm, name] = float(right[row])
            found |= {(arm, name, other): float(own[row, at]) for at, other in enumerate(names)}
    return found


SUMS = sorted(LINEAR.keys() - {"clicks"})

# -- order -----------------------------------------------------------------------------------------


def split(cross: str) -> list[str]:
    return cross.split(" x ")


def shuffled(value: Any, rng: Random) -> Any:
    """With the keys of each mapping, the crosses and the policies' features in another order."""
    if isinstance(value, list) and " x " in str(value):
        crosses = [" x ".join(rng.sample(parts, len(parts))) for parts in map(split, value)]
        return rng.sample(crosses, len(crosses))
    if not isinstance(value, dict):
        return value
    keys = rng.sample(sorted(value), len(value))
    return {key: shuffled(value[key], rng) for key in keys}


def whole() -> dict[str, Any]:
    definition = shop()
    definition["features"]["context"] |= {"member": {"type": "boolean", "default": True}}
    definition["features"]["arm"] |= {"price": {"type": "numeric", "default": 3.0}}
    definition["features"]["crosses"] = ["pet x kind", "age x kind", "pet x price x kind"]
    for name, share in zip(POLICIES, range(1, 20), strict=False):
        definition["policies"][name]["share"] = float(share)
    return definition


def digests(state: State) -> dict[str, str]:
    return {
        name: head_of(state, name)
        for name, learner in sorted(state.learners.items())
        if learner.active.head is not None
    }


def assigned(state: State) -> list[str]:
    chances = state.traffic.chances
    return [winner(state.name, f"unit {number}", chances) for number in range(4_000)]


@pytest.mark.parametrize("orders", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_the_order_in_which_a_definition_is_written_has_no_meaning(orders: int) -> None:
    """The same heads after the same visits, and the same policy of 4,000 units."""
    first = visited(whole(), 20)
    units, rng = assigned(first.state), Random(1)
    for _ in range(orders):
        other = visited(shuffled(whole(), rng), 20)
        assert digests(other.state) == digests(first.state)
        assert assigned(other.state) == units


def test_a_definition_put_back_in_another_order_changes_nothing() -> None:
    log = visited(whole())
    before = digests(log.state)
    log.define(shuffled(whole(), Random(2)))
    assert log.state.schema_version == 1
    assert digests(log.state) == before
    assert bits(replay(log.records)) == bits(log.state)


# -- columns that come and go ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", SUMS)
def test_a_head_with_a_new_category_is_that_of_a_shop_that_always_had_it(policy: str) -> None:
    log, always = visited(linear(), 15), visited(linear(PETS), 15)
    log.define(linear(PETS))
    assert named_sums(log.state, policy) == named_sums(always.state, policy)
    rng = Random(3)
    for each in (log, always):
        rng.seed(3)
        for _ in range(10):
            visit(each, rng, pet=rng.choice(PETS))
    found, expected = named_sums(log.state, policy), named_sums(always.state, policy)
    assert found == {key: pytest.approx(value, abs=1e-9) for key, value in expected.items()}


@pytest.mark.parametrize("policy", SUMS)
def test_a_head_without_a_category_is_that_of_a_shop_that_never_had_it(policy: str) -> None:
    log, never = visited(linear(PETS), 15), visited(linear(), 15)
    log.define(linear())
    assert named_sums(log.state, policy) == named_sums(never.state, policy)


@pytest.mark.parametrize("policy", SUMS)
def test_categories_in_another_order_are_the_same(policy: str) -> None:
    log = visited(linear(PETS))
    before = named_sums(log.state, policy)
    log.define(linear(PETS[::-1]))
    assert named_sums(log.state, policy) == before


def test_clicks_are_counted_on_whatever_the_features() -> None:
    log = visited(linear())
    before = head_of(log.state, "clicks")
    log.define(linear(PETS, member={"type": "boolean", "default": False}))
    assert head_of(log.state, "clicks") == before


def test_a_reward_of_a_decision_under_earlier_features_is_learned() -> None:
    log, always = visited(linear(), 15), visited(linear(PETS), 16)
    decided_before = visited(linear(), 16).settled[-1].event
    log.define(linear(PETS))
    log.write(decided_before)
    for policy in SUMS:
        assert named_sums(log.state, policy) == named_sums(always.state, policy)


def test_a_correction_of_a_reward_under_earlier_features_is_exact() -> None:
    log, always = visited(linear(), 15), visited(linear(PETS), 15)
    log.define(linear(PETS))
    for each in (log, always):
        each.correct(each.settled[10], 1.0)
    for policy in SUMS:
        found, expected = named_sums(log.state, policy), named_sums(always.state, policy)
        assert found == {key: pytest.approx(value, abs=1e-9) for key, value in expected.items()}


# -- numbers whose scale is measured ---------------------------------------------------------------

HEIGHT = {"height": {"type": "numeric", "default": 170.0}}


@pytest.mark.parametrize("policy", ["shared", "windowed", "forgetful"])
def test_a_new_number_is_zero_until_its_scale_is_known(policy: str) -> None:
    """Decisions and rewards from before say nothing of it, then or later."""
    log = visited(linear(), 300)
    log.define(linear(**HEIGHT))
    learner, rng = log.state.learners[policy], Random(4)
    column = learner.view.names.index("height")
    [place] = range(learner.view.groups[column].start, learner.view.groups[column].stop)
    for number in range(learner.active.warm_up):
        head = learner.active.head
        assert isinstance(head, RidgeHead)
        assert head.b[place] == 0.0, number
        visit(log, rng, height=rng.gauss(170.0, 8.0))
    scaling = learner.view.scaling
    assert scaling is not None
    [base] = [c for c in scaling.standardised if log.state.schema.column_name(c) == "height"]
    assert scaling.center[base] == pytest.approx(170.0, abs=6.0)
    assert scaling.spread[base] == pytest.approx(8.0, rel=0.5)
    for _ in range(60):
        visit(log, rng, height=rng.gauss(170.0, 8.0))
    head = learner.active.head
    assert isinstance(head, RidgeHead)
    assert head.A[place, place] > 2.0
    assert np.isfinite(head.A).all()
    earlier = visited(linear(), 1).settled[0].event
    before = head.A[place, place]
    log.write(earlier)
    head = learner.active.head
    assert isinstance(head, RidgeHead)
    if policy == "shared":
        assert head.A[place, place] == before
    assert bits(replay(log.records)) == bits(log.state)


# -- heads that start anew -------------------------------------------------------------------------


def reasons(log: Log, definition: dict[str, Any]) -> dict[str, str]:
    """Why policies would start anew."""
    other = Log()
    other.define(definition)
    return {
        name: why
        for name, fresh in other.state.learners.items()
        if (kept := log.state.learners.get(name)) and (why := obstacle(kept, fresh))
    }


def test_a_net_starts_anew_where_its_inputs_change_and_says_so() -> None:
    nets = {
        "all": {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2},
        "age": {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "features": ["age"]},
    }
    log = Log()
    log.define(shop(**nets))
    for reward in (0.0, 1.0, 1.0):
        for policy in nets:
            log.settle(policy, {"toy1": reward}, {"pet": "cat", "age": 3.0})
    before = head_of(log.state, "age")
    wider = shop(**nets)
    wider["features"]["context"]["pet"]["values"] = PETS
    assert reasons(log, wider) == {"all": "its net has other inputs"}
    log.define(wider)
    assert log.state.learners["all"].rewards == 0
    assert log.state.learners["age"].rewards == 3
    assert head_of(log.state, "age") == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ridge": 2.0}, "it learned with another ridge"),
        ({"disjoint": True, "noise": 1.0}, "it learned with another disjoint, noise"),
        ({"features": ["kind"]}, "it saw none of its columns before"),
        ({"features": ["pet", "kind"]}, ""),
        ({"alpha": 2.0, "share": 0.5}, ""),
    ],
)
def test_a_setting_of_the_head_is_named(change: dict[str, Any], why: str) -> None:
    policy = {"kind": "linucb", "features": ["pet", "age"]}
    if "disjoint" in change:
        change = {**change, "features": ["pet", "age"]}
    log = Log()
    log.define(shop(p=policy))
    assert reasons(log, shop(p=policy | change)).get("p", "") == why


# -- by chance -------------------------------------------------------------------------------------

OPTIONAL = {
    "member": {"type": "boolean", "default": False},
    "city": {"type": "hashed", "buckets": 3, "default": "x"},
    "height": {"type": "numeric", "default": 0.5},
    "pace": {"type": "numeric", "scale": 2.0, "default": 0.0},
    "taste": {"type": "vector", "size": 2},
}


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(sorted(OPTIONAL.keys() - {"taste"})), unique=True))
    definition = linear(draw(st.permutations(PETS)), **{name: OPTIONAL[name] for name in chosen})
    definition["policies"] |= copy.deepcopy({k: POLICIES[k] for k in ("neural", "full", "static")})
    if draw(st.booleans()):
        definition["features"]["crosses"] = ["kind x pet", "kind x age"]
    return shuffled(definition, Random(draw(st.integers(0, 99))))


@settings(max_examples=examples(100))
@given(st.lists(definitions(), min_size=2, max_size=4), st.integers(0, 99), st.integers(1, 60))
def test_a_state_restored_between_definitions_goes_on_bit_by_bit(
    written: list[dict[str, Any]], seed: int, visits: int
) -> None:
    log, rng = Log(), Random(seed)
    snapshots = []
    for definition in written:
        log.define(definition)
        for number in range(visits):
            visit(log, rng)
            if rng.random() < 0.3:
                log.correct(rng.choice(log.settled), rng.random())
            if number == visits // 2:
                snapshots.append(log.state.snapshot())
    restored = State.restore(snapshots[(len(written) - 1) // 2])
    assert bits(replay(log.records, restored)) == bits(log.state)


def test_the_trainer_reads_rewards_under_earlier_features() -> None:
    log = visited(linear(), 12)
    log.define(linear(PETS))
    rng = Random(5)
    for _ in range(8):
        visit(log, rng)
    learner = log.state.learners["windowed"]
    training = run_virtual(collect(store_of(log), log.state, learner))
    assert training.rewards == 20
    memory = learner.active.memory
    assert memory is not None
    np.testing.assert_array_equal(training.memory.rows[:], memory.rows[:])


# -- auto ------------------------------------------------------------------------------------------


def automatic(pets: list[str], arm: bool = True, **features: Any) -> dict[str, Any]:
    """The shop with `auto` alone, for these pets, with further features of the context."""
    definition = shop(shared={"kind": "auto"})
    definition["features"]["context"]["pet"]["values"] = pets
    definition["features"]["context"] |= features
    if not arm:
        definition["features"] |= {"arm": {}, "crosses": []}
        definition["arms"] = {name: {} for name in definition["arms"]}
    return definition


def told(log: Log, **context: Any) -> list[np.ndarray]:
    """Means, widths and doubts of all arms for a cat of 3 years."""
    learner, state = log.state.learners["shared"], log.state
    x = state.schema.encode_context({"pet": "cat", "age": 3.0, **context})
    phi = learner.view.design(x[None], state.candidates.x)
    assert isinstance(learner.active.head, AveragedHead)
    return list(learner.active.head.spread(phi, state.candidates.ids))


@pytest.mark.parametrize("arm", [True, False])
def test_auto_keeps_what_it_learned_when_a_category_or_a_feature_is_added(arm: bool) -> None:
    """Also when values change their order. What is new was never seen: it starts at the prior."""
    log = visited(automatic(PETS[:2], arm), visits=120)
    before = told(log)
    vip = {"vip": {"type": "boolean", "default": False}}
    log.define(automatic(["fish", "dog", "cat"], arm, **vip))
    assert log.state.learners["shared"].births == [1, 2]
    np.testing.assert_allclose(told(log, vip=False), before, rtol=1e-9)
    _, width, _ = told(log, pet="fish", vip=True)
    assert (width >= before[1]).all()
    assert (width > before[1]).any()
    rng = Random(9)
    for _ in range(30):
        visit(log, rng, vip=rng.random() < 0.5)
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("arm", [True, False])
def test_auto_without_a_column_is_as_if_it_had_never_been_there(arm: bool) -> None:
    """For members that do not forget: against a head that learned the same rewards without it."""
    log, plain = Log(), Log()
    vip = {"vip": {"type": "boolean", "default": False}}
    log.define(automatic(PETS, arm, **vip))
    plain.define(automatic(PETS[:2], arm))
    rng = Random(0)
    for _ in range(80):
        name, pet = rng.choice(sorted(log.state.arms)), rng.choice(PETS[:2])
        reward, age = float(rng.random() < 0.4), float(rng.randrange(9))
        log.settle("shared", {name: reward}, {"pet": pet, "age": age, "vip": rng.random() < 0.5})
        plain.settle("shared", {name: reward}, {"pet": pet, "age": age})
    log.define(automatic(PETS[:2], arm))
    assert log.state.learners["shared"].births == [1, 2]
    for one, other in zip(opinions(log), opinions(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)
    visit(log, rng)
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("gone", [False, True])
def test_members_that_joined_auto_go_on_under_other_columns(gone: bool) -> None:
    """A copy of each member joined: it says what the member says, whatever columns come or go."""
    log = visited(automatic(PETS[: 3 if gone else 2]), visits=60)
    head = log.state.learners["shared"].active.head
    assert isinstance(head, AveragedHead)
    twin = copy.deepcopy(head)
    head.join(twin.members, twin.noises, twin._evidence)
    log.define(automatic(PETS[: 2 if gone else 3]))
    found = opinions(log)
    assert len(found) == 2 * sum(spec.gamma == 1 for spec in twin.specs)
    for one, other in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        assert np.array_equal(one, other)
    visit(log, Random(3))


def opinions(log: Log) -> list[np.ndarray]:
    """Means of all arms for a dog of 5 years, and variances, of each member that does not forget.

    Random features are left out: their scale stays that of the definition before.
    """
    learner, state = log.state.learners["shared"], log.state
    head = learner.active.head
    assert isinstance(head, AveragedHead)
    x = state.schema.encode_context({"pet": "dog", "age": 5.0})
    ids = state.candidates.ids
    seen = MemberRows(head._rows, learner.view.design(x[None], state.candidates.x), len(ids))
    places = np.array([head._arms.by_name[arm] - 1 for arm in ids])
    return [
        np.array(member.predict(seen, places, head.rewards.level, head.settled))
        for member in head.members
        if member.spec.gamma == 1 and member.spec.own != "relu"
    ]


def test_auto_starts_anew_where_arms_get_their_first_feature() -> None:
    log = visited(automatic(PETS[:2], arm=False), visits=40)
    kept = log.state.learners["shared"]
    log.define(automatic(PETS[:2]))
    assert obstacle(kept, log.state.learners["shared"]) == "it sees another kind of features"
