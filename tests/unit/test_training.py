"""The trainer's part of the fold: what it reads of the log, and the artifact it hands over."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from service.errors import StoreUnavailable
from service.events import Expired, VersionStaged, encode_event
from service.fold import read_artifact
from service.stores.base import Append
from service.stores.memory import MemoryStore
from service.training.trainer import History, collect, due_count, train
from tests.unit.folding import Log, bits, replay, shop

NET = {
    "kind": "neural_linear_ts",
    "hidden": [8],
    "embedding": 2,
    "draws": 16,
    "training": {"first": 4, "epochs": 8},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def opened(**more: Any) -> Log:
    log = Log()
    log.define(shop(p=NET | more, other={"kind": "random"}))
    return log


def rewarded(log: Log, count: int, policy: str = "p") -> None:
    """A toy is liked by dogs, food by cats; the third arm by nobody."""
    for number in range(count):
        arm, pet = ["food1", "toy1", "bed1"][number % 3], ["cat", "dog"][number % 2]
        liked = (arm, pet) in {("food1", "cat"), ("toy1", "dog")}
        log.settle(policy, {arm: float(liked)}, {"pet": pet, "age": number})


def store_of(log: Log) -> MemoryStore:
    store = MemoryStore()
    appends = [
        Append("shop", encode_event(event), {str(number): ""})
        for number, (event, _) in enumerate(log.records)
    ]
    asyncio.run(store.commit(appends))
    return store


def collected(log: Log, count: int) -> History:
    learner = log.state.learners["p"]
    return asyncio.run(collect(store_of(log), log.state, learner, count))


def rewards_of(history: History) -> list[float]:
    return [entry.outcome.settled.reward for entry in history.entries]


@pytest.mark.parametrize(("rewards", "due"), [(4, 4), (7, 4), (8, 8), (15, 8), (16, 16), (100, 64)])
def test_what_is_trained_on_is_the_latest_doubling_not_the_moment(rewards: int, due: int) -> None:
    log = opened()
    rewarded(log, rewards)
    learner = log.state.learners["p"]
    assert learner.training_due
    assert due_count(learner) == due


def test_the_first_training_is_due_at_4_rewards_and_the_next_at_twice_the_last() -> None:
    log = opened()
    rewarded(log, 3)
    learner = log.state.learners["p"]
    assert (learner.training_due_at, learner.training_due) == (4, False)
    rewarded(log, 3)
    assert learner.training_due
    log.stage("p")
    log.activate("p")
    assert (learner.training_due_at, learner.training_due) == (12, False)


def test_a_frozen_policy_and_one_without_a_net_are_never_due() -> None:
    log = opened(learning=False)
    rewarded(log, 6)
    for name in ("p", "other"):
        learner = log.state.learners[name]
        assert (learner.training_due_at, learner.training_due) == (None, False)


def test_a_history_is_the_policys_own_up_to_the_count() -> None:
    """Positions: 1 defined, 2 to 4 the policy's, 5 and 6 another's, 7 to 9 the policy's."""
    log = opened()
    rewarded(log, 3)
    rewarded(log, 2, "other")
    rewarded(log, 3)
    history = collected(log, 5)
    assert (history.rewards, history.watermark, history.begins) == (5, 8, 1)
    assert [entry.first for entry in history.entries] == [2, 3, 4, 7, 8]


def test_a_history_of_all_policies_where_it_learns_from_all() -> None:
    log = opened(learns_from="all")
    rewarded(log, 2)
    rewarded(log, 2, "other")
    assert [entry.first for entry in collected(log, 4).entries] == [2, 3, 4, 5]


def test_corrections_are_in_a_history_and_count_no_reward() -> None:
    log = opened()
    late = log.settle("p", {"toy1": 0.0}, kind=Expired)
    log.correct(late, 1.0)
    rewarded(log, 3)
    history = collected(log, 4)
    assert (history.rewards, history.watermark) == (4, 6)
    assert rewards_of(history)[:2] == [0.0, 1.0]
    assert [entry.first for entry in history.entries] == [2, 2, 4, 5, 6]


def test_a_window_keeps_the_latest_and_drops_corrections_of_the_others() -> None:
    """Of 5 rewards at 2 to 6 the latest 2; the correction of the first goes, of the last stays."""
    log = opened(training={"first": 4, "window": 2})
    rewarded(log, 5)
    log.correct(log.settled[0], 0.5)
    log.correct(log.settled[4], 0.25)
    rewarded(log, 1)
    history = collected(log, 6)
    assert (history.rewards, history.begins, history.watermark) == (6, 6, 9)
    assert [entry.first for entry in history.entries] == [6, 6, 9]
    assert rewards_of(history)[1] == 0.25


@pytest.mark.parametrize(("window", "firsts"), [(3, [3, 4]), (2, [4, 4]), (1, [4, 4])])
def test_a_window_does_not_cut_a_slate(window: int, firsts: list[int]) -> None:
    """Rewards: two arms at 2, one at 3, two at 4. A slate is kept whole or not at all."""
    log = opened(training={"first": 4, "window": window})
    log.settle("p", {"toy1": 1.0, "food1": 0.0})
    log.settle("p", {"toy1": 1.0})
    log.settle("p", {"toy1": 0.0, "bed1": 1.0})
    history = collected(log, 5)
    assert sorted({entry.first for entry in history.entries}) == sorted(set(firsts))
    assert history.begins == firsts[0]


def test_a_head_started_anew_is_trained_on_what_came_after_it() -> None:
    """The correction of a reward from before would move b without A."""
    log = opened()
    rewarded(log, 3)
    log.define(shop(p=NET | {"ridge": 2.0}))
    log.correct(log.settled[0], 0.5)
    rewarded(log, 4)
    history = collected(log, 4)
    assert history.begins == 5
    assert [entry.first for entry in history.entries] == [7, 8, 9, 10]


def test_a_policy_that_learned_from_all_and_now_from_its_own_can_be_trained_again() -> None:
    log = opened(learns_from="all")
    rewarded(log, 12, "other")
    log.define(shop(p=NET, other={"kind": "random"}))
    rewarded(log, 4)
    learner = log.state.learners["p"]
    assert len(collected(log, due_count(learner)).entries) == 4


def test_a_log_that_ends_too_early_is_said_and_tried_again() -> None:
    log = opened()
    rewarded(log, 3)
    with pytest.raises(StoreUnavailable, match="ends before"):
        collected(log, 4)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kind": "neural_ucb", "draws": None},
        {"disjoint": True},
        {"training": {"first": 4, "window": 5, "epochs": 4}},
        {"learns_from": "all"},
    ],
)
def test_an_artifact_is_accepted_and_its_head_holds_what_was_learned(more: dict) -> None:
    """20 rewards, of which 16 were due; one is corrected before, one after the watermark."""
    policy = {name: value for name, value in (NET | more).items() if value is not None}
    log = Log()
    log.define(shop(p=policy, other={"kind": "random"}))
    rewarded(log, 12)
    log.correct(log.settled[11], 0.5)
    rewarded(log, 8)
    log.correct(log.settled[15], 0.25)
    learner = log.state.learners["p"]
    artifact = asyncio.run(train(store_of(log), log.state, learner))
    version = read_artifact(learner, artifact)
    assert (version.number, version.trained_to, version.rewards) == (1, 18, 16)
    assert version.head is not None
    window = learner.settings.training.window  # type: ignore[union-attr]
    assert version.head.health().effective_count == (window or 16)
    outputs = {"outputs": list(version.encoder.outputs)}
    arms = ["bed1", "food1", "toy1"] if learner.disjoint else []
    assert outputs == {"outputs": arms}
    assert version.encoder.output is not None
    assert version.encoder.output[0].shape == (2, max(1, len(arms)))
    staged = VersionStaged(
        at=0.0, policy="p", born=1, version=1, artifact="", size=0, watermark=18, rewards=16
    )
    log.write(staged, artifact)
    log.activate("p")
    assert learner.active.head is not None
    assert learner.active.head.health().effective_count == (window or 16) + 4
    assert bits(replay(log.records, eager=True)) == bits(log.state)


def test_a_rebuilt_head_equals_a_fold_of_every_reward_with_its_latest_value() -> None:
    """A of the head is ridge I + sum phi phi^T over 4 rewards, b holds the corrected one."""
    log = opened()
    rewarded(log, 3)
    log.correct(log.settled[0], 0.25)
    rewarded(log, 1)
    learner = log.state.learners["p"]
    version = read_artifact(learner, asyncio.run(train(store_of(log), log.state, learner)))
    shown = [one.event.settled[0] for one in log.settled]
    phi = version.encoder(learner.view.rows(np.array([one.x for one in shown])))
    head: Any = version.head
    np.testing.assert_allclose(head.A, np.eye(5) + phi.T @ phi, atol=1e-12)
    np.testing.assert_allclose(head.b, phi.T @ [one.reward for one in shown], atol=1e-12)
