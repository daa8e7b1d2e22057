"""A policy's reset in the fold: its head starts anew, the others and the tallies go on."""

import pytest

from service.errors import StoreUnavailable
from service.state.artifacts import read_artifact
from service.state.fold import State
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.support.training import trainer
from tests.unit.folding import NET, Log, bits, head_of, replay, shop, store_of

POLICIES = {
    "p": {"kind": "neural_linear_ts", "draws": 16, **NET, "training": {"first": 4, "epochs": 1}},
    "other": {"kind": "linucb"},
}


@pytest.fixture
def log() -> Log:
    """Ten rewards each, and a version of p that serves."""
    log = Log()
    log.define(shop(**POLICIES))
    for number in range(20):
        log.settle(["p", "other"][number % 2], {"toy1": float(number % 3 == 0)})
    log.stage("p")
    log.activate("p")
    return log


def test_the_head_is_a_new_one_and_nothing_else_changes(log: Log) -> None:
    other, tally = head_of(log.state, "other"), vars(log.state.reward_sums["p"]).copy()
    log.reset("p")
    fresh = Log()
    fresh.define(shop(**POLICIES))
    learner = log.state.learners["p"]
    assert head_of(log.state, "p") == head_of(fresh.state, "p")
    assert (learner.rewards, learner.active.number, learner.born) == (0, 0, 2)
    assert learner.training_due_at == 4
    assert head_of(log.state, "other") == other
    assert vars(log.state.reward_sums["p"]) == tally
    assert log.state.revision == 2
    assert log.state.candidates.ids == fresh.state.candidates.ids


def test_corrections_of_what_was_forgotten_change_nothing_in_the_head(log: Log) -> None:
    log.reset("p")
    before = head_of(log.state, "p")
    log.correct(log.settled[0], 0.5)
    assert head_of(log.state, "p") == before


@pytest.mark.process
def test_a_training_reads_what_came_after_it(log: Log) -> None:
    train = trainer()
    log.reset("p")
    learner = log.state.learners["p"]
    with pytest.raises(StoreUnavailable):
        run_virtual(collect(store_of(log), log.state, learner, 4))
    for _ in range(4):
        log.settle("p", {"food1": 1.0})
    history = run_virtual(collect(store_of(log), log.state, learner, 4))
    assert (history.memory.rewards, history.begins) == ([1.0] * 4, 24)
    version = read_artifact(learner, run_virtual(train(store_of(log), log.state, learner)))
    assert version.head is not None
    assert version.head.health().effective_count == 4


@pytest.mark.process
def test_a_version_of_the_head_before_it_is_not_staged(log: Log) -> None:
    train = trainer()
    for _ in range(10):
        log.settle("p", {"food1": 1.0})
    artifact = run_virtual(train(store_of(log), log.state, log.state.learners["p"]))
    log.reset("p")
    log.hand_over("p", artifact)
    assert log.state.learners["p"].staged is None


@pytest.mark.parametrize("policy", ["p", "nobody"])
def test_a_log_with_a_reset_replays_from_anywhere(log: Log, policy: str) -> None:
    log.reset(policy)
    log.settle("p", {"toy1": 1.0})
    assert bits(replay(log.records)) == bits(log.state)
    for stop in (21, 23, 24):
        state = State.restore(replay(log.records[:stop]).snapshot())
        assert bits(replay(log.records, state)) == bits(log.state)


def test_a_reset_of_a_deleted_experiment_takes_its_revision_all_the_same(log: Log) -> None:
    log.delete()
    log.reset("p")
    log.define(shop(**POLICIES))
    assert log.state.revision == 4
