"""A change of the world in the fold: noticed, logged, and what it made stale forgotten, exactly."""

from typing import Any

import numpy as np
import pytest

from service.bandits.heads import Head, Observation
from service.decide.scoring import decide
from service.state.artifacts import read_artifact
from service.state.decider import Decider
from service.state.events import ChangeDetected, Default
from service.state.fold import State, changes_due
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.support.training import trainer
from tests.unit.folding import NET, Log, bits, head_of, opened, replay, shop, store_of

CROSSED = {"kind": "lints", "draws": 16, "change": True, "features": ["pet x kind"]}
KINDS: dict[str, dict[str, Any]] = {
    "lints": CROSSED,
    "disjoint": {"kind": "linucb", "disjoint": True, "change": True},
    "popularity": {"kind": "popularity", "draws": 16, "change": True},
    "neural": {"kind": "neural_linear_ts", "draws": 16, "change": True, **NET},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 4, "change": True, **NET},
    "full": {"kind": "neural_ucb", "form": "full", "change": True, **NET},
    "windowed": {"kind": "linucb", "change": True, "window": 64},
}
AGE, CAT, DOG = range(3)
"""Columns of x."""


def visits(log: Log, count: int, clicks: dict[str, float], seed: int = 0) -> list[str]:
    """A cat or a dog, a toy or food, a click with the pet's chance; the pet of each visit. Stops at
    an alarm."""
    rng, pets = np.random.default_rng(seed), []
    for _ in range(count):
        pet, arm = ["cat", "dog"][rng.integers(2)], ["toy1", "food1"][rng.integers(2)]
        log.settle("p", {arm: float(rng.random() < clicks[pet])}, {"pet": pet})
        pets.append(pet)
        if changes_due(log.state, 0.0):
            break
    return pets


def head(log: Log) -> Head:
    found = log.state.learners["p"].active.head
    assert found is not None
    return found


def fresh_over_memory(log: Log) -> Head:
    """A head from the prior that met the rows of the memory, one after another."""
    learner = log.state.learners["p"]
    version = learner.version(learner.active.number, learner.active.encoder)
    memory = learner.active.memory
    assert memory is not None
    assert version.head is not None
    phi = version.phi(memory.rows[:])
    rewards = np.array(memory.rewards) - version.offset(phi)
    for row in range(len(memory)):
        version.head.observe(
            Observation(memory.arms[row], phi[row], rewards[row], memory.keys[row])
        )
    return version.head


def expect_same(one: Head, other: Head) -> None:
    for name, array in one.arrays().items():
        if array.dtype == float:
            np.testing.assert_allclose(array, other.arrays()[name], rtol=1e-9, atol=1e-9)
        else:
            assert array.tobytes() == other.arrays()[name].tobytes()


def test_dogs_that_stop_clicking_are_noticed_within_120_visits_and_by_name() -> None:
    """2,000 visits without an alarm; then the dogs' clicks fall from 0.9 to 0.1, in half of the
    visits. Named: pet=dog, column 2 of x; dated to within 60 visits."""
    log = opened(CROSSED)
    assert len(visits(log, 2_000, {"cat": 0.2, "dog": 0.9})) == 2_000
    changed_at = len(log.records)
    after = visits(log, 120, {"cat": 0.2, "dog": 0.1}, seed=1)
    [event] = changes_due(log.state, 7.0)
    assert len(after) < 120
    assert (event.policy, event.born, event.number, event.at) == ("p", 1, 1, 7.0)
    assert (event.stratum, event.columns) == ("pet=dog", [DOG])
    assert abs(event.since - changed_at) < 60
    log.write(event)
    assert changes_due(log.state, 0.0) == []
    [entry] = log.state.learners["p"].history
    assert entry == {"change": "pet=dog", "position": len(log.records), "at": 7.0}


def alarms(seed: int, policy: dict[str, Any], noise: float, ends: tuple[float, float]) -> list[str]:
    """Strata of the changes in 700 visits of a world that stays as it is: real-valued rewards by
    pet, kind and age, which their range cuts off, and noise. `ends`: of the range."""
    low, high = ends
    content = shop(p=policy | {"change": True})
    content["features"]["context"]["age"] = {"type": "numeric"}
    content["features"]["crosses"] = ["pet x kind", "age x kind"]
    content["reward"] = {"range": [low, high], "default": low}
    log, rng, found = Log(), np.random.default_rng(seed), []
    log.define(content)
    cells, slopes = rng.uniform(0.1, 0.9, (2, 3)), 0.1 * rng.standard_normal(3)
    for _ in range(700):
        pet, age = int(rng.integers(2)), float(rng.standard_normal())
        context, candidates = {"pet": ["cat", "dog"][pet], "age": age}, log.state.candidates
        x = log.state.schema.encode_context(context)
        _, slate = decide(
            Decider.serving(log.state.learners["p"]), x, candidates, 1, int(rng.integers(2**62))
        )
        arm = candidates.ids[slate.arms[0]]
        kind = ["food", "toy", "bed"].index(str(log.state.arms[arm]["kind"]))
        mean = np.clip(cells[pet, kind] + slopes[kind] * age, 0, 1)
        reward = float(np.clip(mean + noise * rng.standard_normal(), 0, 1))
        log.settle("p", {arm: low + (high - low) * reward}, context)
        for event in changes_due(log.state, 0.0):
            log.write(event)
            found.append(event.stratum)
    return found


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-50.0, 150.0)])
@pytest.mark.parametrize("noise", [0.0, 0.001, 0.1])
def test_rewards_that_are_predicted_closely_are_no_change_when_they_are_not(
    noise: float, ends: tuple[float, float]
) -> None:
    """Where rewards have next to no noise, 30 residuals say little of what a head still errs by:
    such worlds had up to four alarms in 700 visits, one upon another, of each of which a head
    learned anew."""
    for seed in range(4):
        assert alarms(seed, {"kind": "linucb"}, noise, ends) == []


@pytest.mark.parametrize("kind", KINDS)
def test_stale_rows_leave_head_and_memory_and_the_others_stay(kind: str) -> None:
    """40 visits of cats and dogs; the dogs' before position 30 are stale. What is left: a fresh
    head over the others, and the counts say so."""
    log = opened(KINDS[kind])
    pets = visits(log, 40, {"cat": 0.5, "dog": 0.5})
    assert head(log).health().effective_count == 40
    log.change("p", [DOG], since=30)
    kept = [position for position, pet in enumerate(pets, 2) if pet == "cat" or position >= 30]
    memory = log.state.learners["p"].active.memory
    assert memory is not None
    assert memory.positions == kept
    assert 20 < len(kept) < 39
    assert head(log).health().effective_count == len(kept)
    expect_same(head(log), fresh_over_memory(log))


def test_corrections_of_dropped_rows_weigh_nothing_and_of_kept_ones_all() -> None:
    """A cat's and a dog's toy, both 0 at first; the dog's is dropped. The cat's click adds 1 to b
    of its cell, the dog's nothing; one shown before the change and settled after it counts."""
    log = opened(CROSSED)
    cat = log.settle("p", {"toy1": 0.0}, {"pet": "cat"}, kind=Default)
    dog = log.settle("p", {"toy1": 0.0}, {"pet": "dog"}, kind=Default)
    log.change("p", [DOG], since=4)
    before = head_of(log.state, "p")
    log.correct(dog, 1.0)
    assert head_of(log.state, "p") == before
    log.correct(cat, 1.0)
    ridge: Any = head(log)
    assert ridge.b.tolist() == [0, 0, 1, 0, 0, 0]
    late = log.settle("p", {"toy1": 0.0}, {"pet": "dog"}, kind=Default)
    log.correct(late, 1.0)
    assert ridge.b.tolist() == [0, 0, 1, 1, 0, 0]
    assert ridge.n == 2


@pytest.mark.parametrize("kind", ["neural", "lints", "full"])
def test_a_snapshot_at_any_point_of_a_change_and_its_tail_equal_the_whole_log(kind: str) -> None:
    """Before the alarm, between it and its event, after it: the detector's sums included."""
    log = opened(KINDS[kind])
    snapshots = []
    visits(log, 400, {"cat": 0.2, "dog": 0.9})
    snapshots.append(log.state.snapshot())
    visits(log, 300, {"cat": 0.2, "dog": 0.05}, seed=1)
    [event] = changes_due(log.state, 0.0)
    snapshots.append(log.state.snapshot())
    log.write(event)
    snapshots.append(log.state.snapshot())
    visits(log, 50, {"cat": 0.2, "dog": 0.05}, seed=2)
    for snapshot in snapshots:
        restored = State.restore(snapshot)
        assert bits(replay(log.records, restored)) == bits(log.state)
    again = State.restore(snapshots[1])
    assert changes_due(again, 0.0) == [event]
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.parametrize("lag", [0, 10, 45])
def test_a_version_staged_before_a_change_forgets_it_while_it_catches_up(lag: int) -> None:
    """Rebuilt over 60 events or fewer, then a change of the dogs since position 50, then more."""
    log = opened(KINDS["neural"])
    visits(log, 60, {"cat": 0.5, "dog": 0.5})
    log.stage("p", lag)
    visits(log, 5, {"cat": 0.5, "dog": 0.5}, seed=1)
    log.change("p", [DOG], since=50)
    visits(log, 5, {"cat": 0.5, "dog": 0.5}, seed=2)
    log.activate("p")
    learner = log.state.learners["p"]
    memory = learner.active.memory
    assert learner.active.number == 1
    assert memory is not None
    stale = (memory.rows.column(DOG) != 0) & (np.array(memory.positions) < 50)
    assert not stale.any()
    assert 30 < len(memory) < 70
    expect_same(head(log), fresh_over_memory(log))
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.process
def test_training_reads_what_the_change_left_and_falls_due_soon_after_it() -> None:
    """First due at 4 rewards, then at twice as many each time: trained at 64, next at 128; a change
    after 70 rewards makes that 74. The net is trained on the cats and on the dogs since."""
    train = trainer()
    log = opened(KINDS["neural"] | {"training": {"first": 4, "epochs": 1}})
    visits(log, 64, {"cat": 0.5, "dog": 0.5})
    log.stage("p")
    log.activate("p")
    learner = log.state.learners["p"]
    assert learner.training_due_at == 128
    visits(log, 6, {"cat": 0.5, "dog": 0.5}, seed=1)
    log.change("p", [DOG], since=60)
    assert learner.training_due_at == 74
    visits(log, 4, {"cat": 0.5, "dog": 0.5}, seed=2)
    history = run_virtual(collect(store_of(log), log.state, learner, 74))
    memory = learner.active.memory
    assert memory is not None
    assert history.rewards == 74
    assert history.memory.positions == memory.positions
    assert history.memory.rewards == memory.rewards
    version = read_artifact(learner, run_virtual(train(store_of(log), log.state, learner)))
    assert version.head is not None
    assert version.head.health().effective_count == len(memory) < 74


@pytest.mark.process
def test_a_training_builds_the_head_from_more_than_the_memory_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A memory of 16 of 64 settlements, a change of dogs since 20. The head is of all but the dogs
    before it. A correction finds its weight where that can be known: since 20, or in the memory."""
    train = trainer()
    monkeypatch.setattr("service.state.learner.REMEMBERED", 16)
    log = opened(KINDS["neural"] | {"training": {"first": 64, "epochs": 1}})
    visits(log, 60, {"cat": 0.5, "dog": 0.5})
    log.change("p", [DOG], since=20)
    visits(log, 4, {"cat": 0.5, "dog": 0.5}, seed=1)
    learner = log.state.learners["p"]
    artifact = run_virtual(train(store_of(log), log.state, learner))
    version = read_artifact(learner, artifact)
    first = [log.settled[row].event.settled[0].row for row in range(18)]  # 1: the definition
    dogs = log.state.schema.layout.unpack(first)[:, DOG].sum()
    assert dogs > 0
    assert version.head is not None
    assert version.head.health().effective_count == 64 - dogs
    assert version.memory is not None
    assert len(version.memory) <= 16
    assert version.begins == 20
    log.hand_over("p", artifact)
    log.activate("p")
    assert bits(replay(log.records)) == bits(log.state)
    before = head_of(log.state, "p")
    log.correct(log.settled[0], 0.25)
    assert head_of(log.state, "p") == before
    log.correct(log.settled[30], 0.25)
    assert head_of(log.state, "p") != before


def test_a_change_that_another_head_met_is_passed_over() -> None:
    log = opened(CROSSED)
    visits(log, 20, {"cat": 0.5, "dog": 0.5})
    log.change("p", [DOG], since=99)
    stale, _ = log.records[-1]
    assert isinstance(stale, ChangeDetected)
    log.define(shop(p=CROSSED | {"ridge": 2.0}))
    visits(log, 20, {"cat": 0.5, "dog": 0.5})
    log.write(stale)
    assert head(log).health().effective_count == 20
    assert log.state.learners["p"].changes == 0


@pytest.mark.parametrize(
    "policy", [CROSSED | {"learning": False}, {"kind": "random"}, {"kind": "static"}]
)
def test_a_policy_that_is_frozen_or_predicts_nothing_reports_no_change(
    policy: dict[str, Any],
) -> None:
    log = opened(policy | {"change": True})
    assert len(visits(log, 300, {"cat": 0.2, "dog": 0.9})) == 300
    assert len(visits(log, 300, {"cat": 0.9, "dog": 0.1}, seed=1)) == 300
