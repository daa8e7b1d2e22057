"""The trainer's part of the fold: what it reads of the log, and the artifact it hands over."""

import asyncio
from typing import get_args

import httpx
import pytest
import torch

from service.bandits.heads import Head
from service.bandits.heads.gradient import Form
from service.errors import StoreUnavailable
from service.log.replicas import Replicas
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.state.artifacts import read_artifact, read_meta, report_of
from service.state.events import Default, encode_event
from service.state.fold import State
from service.training.settlements import TrainingSet
from service.training.trainer import _bring, _make, _round, due_count, train
from tests.support.clock import run_virtual
from tests.unit.folding import TRAINED, Log, bits, collected, replay, shop, store_of, trainable

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def rewarded(log: Log, count: int, policy: str = "p") -> None:
    """A toy is liked by dogs, food by cats; the third arm by nobody."""
    for number in range(count):
        arm, pet = ["food1", "toy1", "bed1"][number % 3], ["cat", "dog"][number % 2]
        liked = (arm, pet) in {("food1", "cat"), ("toy1", "dog")}
        log.settle(policy, {arm: float(liked)}, {"pet": pet, "age": number})


def rewards_of(history: TrainingSet) -> list[float]:
    return history.memory.rewards


@pytest.mark.parametrize(("rewards", "due"), [(4, 4), (7, 4), (8, 8), (15, 8), (16, 16), (100, 64)])
def test_what_is_trained_on_is_the_latest_doubling_not_the_moment(rewards: int, due: int) -> None:
    log = trainable()
    rewarded(log, rewards)
    learner = log.state.learners["p"]
    assert learner.training_due
    assert due_count(learner) == due


def test_the_first_training_is_due_at_4_rewards_and_the_next_at_twice_the_last() -> None:
    log = trainable()
    rewarded(log, 3)
    learner = log.state.learners["p"]
    assert (learner.training_due_at, learner.training_due) == (4, False)
    rewarded(log, 3)
    assert learner.training_due
    log.stage("p")
    log.activate("p")
    assert (learner.training_due_at, learner.training_due) == (12, False)


def test_a_frozen_policy_and_one_without_a_net_are_never_due() -> None:
    log = trainable(learning=False)
    rewarded(log, 6)
    for name in ("p", "other"):
        learner = log.state.learners[name]
        assert (learner.training_due_at, learner.training_due) == (None, False)


def test_a_history_is_the_policys_own_up_to_the_count() -> None:
    """Positions: 1 defined, 2 to 4 the policy's, 5 and 6 another's, 7 to 9 the policy's."""
    log = trainable()
    rewarded(log, 3)
    rewarded(log, 2, "other")
    rewarded(log, 3)
    history = collected(log, 5)
    assert (history.rewards, history.watermark, history.begins) == (5, 8, 1)
    assert history.memory.positions == [2, 3, 4, 7, 8]


def test_corrections_are_merged_into_a_history_and_count_no_reward() -> None:
    log = trainable()
    late = log.settle("p", {"toy1": 0.0}, kind=Default)
    log.correct(late, 1.0)
    rewarded(log, 3)
    history = collected(log, 4)
    assert (history.rewards, history.watermark) == (4, 6)
    assert rewards_of(history)[0] == 1.0
    assert history.memory.positions == [2, 4, 5, 6]


def test_a_window_keeps_the_latest_and_drops_corrections_of_the_others() -> None:
    """Of 6 rewards at 2 to 6 and 9 the latest 2; the correction of the first goes, of the fifth
    stays."""
    log = trainable(window=2)
    rewarded(log, 5)
    log.correct(log.settled[0], 0.5)
    log.correct(log.settled[4], 0.25)
    rewarded(log, 1)
    history = collected(log, 6)
    assert (history.rewards, history.begins, history.watermark) == (6, 1, 9)
    assert history.memory.positions == [6, 9]
    assert rewards_of(history)[0] == 0.25


@pytest.mark.parametrize(
    ("window", "firsts"),
    [(5, [2, 2, 3, 4, 4]), (4, [3, 4, 4]), (3, [3, 4, 4]), (2, [4, 4]), (1, [4, 4])],
)
def test_a_window_does_not_cut_a_slate(window: int, firsts: list[int]) -> None:
    """Rewards: two arms at 2, one at 3, two at 4. A slate is kept whole or not at all."""
    log = trainable(window=window)
    log.settle("p", {"toy1": 1.0, "food1": 0.0})
    log.settle("p", {"toy1": 1.0})
    log.settle("p", {"toy1": 0.0, "bed1": 1.0})
    history = collected(log, 5)
    assert history.memory.positions == firsts


def test_a_head_started_anew_is_trained_on_what_came_after_it() -> None:
    """The correction of a reward from before would move b without A."""
    log = trainable()
    rewarded(log, 3)
    log.define(shop(p=TRAINED | {"ridge": 2.0}))
    log.correct(log.settled[0], 0.5)
    rewarded(log, 4)
    history = collected(log, 4)
    assert history.begins == 5
    assert history.memory.positions == [7, 8, 9, 10]


def test_a_log_that_ends_too_early_is_said_and_tried_again() -> None:
    log = trainable()
    rewarded(log, 3)
    with pytest.raises(StoreUnavailable, match="ends before"):
        collected(log, 4)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kind": "neural_ucb", "draws": None},
        {"disjoint": True},
        {"window": 5},
        {"change": True},
        {"gamma": 0.9, "decay_every": 3},
        {"learns_from": "all"},
        {"kind": "neural_linucb", "draws": None},
        {"kind": "neural_linucb", "disjoint": True, "draws": None},
        *({"kind": "neural_ucb", "form": form, "draws": None} for form in get_args(Form)),
        {"kind": "neural_glm_ts"},
        {"kind": "bootstrap_ensemble", "draws": None},
        {"kind": "mc_dropout", "draws": None},
        {"kind": "greedy", "regressor": "neural", "draws": None},
        {"kind": "static", "draws": None},
    ],
)
def test_an_artifact_is_accepted_and_its_head_holds_what_was_learned(more: dict) -> None:
    """20 rewards, of which 16 were due; one is corrected before, one after the watermark."""
    policy = {name: value for name, value in (TRAINED | more).items() if value is not None}
    log = Log()
    log.define(shop(p=policy, other={"kind": "random"}))
    rewarded(log, 12)
    log.correct(log.settled[11], 0.5)
    rewarded(log, 8)
    log.correct(log.settled[15], 0.25)
    learner = log.state.learners["p"]
    count = due_count(learner)
    artifact = asyncio.run(train(store_of(log), log.state, learner))
    version = read_artifact(learner, artifact)
    static = learner.settings.kind == "static"
    assert (version.number, version.rewards) == (1, 4 if static else 16)
    assert version.trained_to == 1 + count + (count > 12)
    assert version.encoder.output is not None
    width = 8 if learner.policy.net.rectified else 2
    assert version.encoder.output[0].shape == (width, 3 if learner.policy.disjoint else 1)
    log.hand_over("p", artifact)
    log.activate("p")
    if not static:
        expect_counts(version.head, learner.active.head, more)
    assert bits(replay(log.records)) == bits(log.state)
    assert bits(State.restore(log.state.snapshot())) == bits(log.state)


def expect_counts(trained: Head | None, active: Head | None, more: dict) -> None:
    """16 rewards and 20, of a window the latest 5; with gamma 0.9 for every 3: 0.729 n each time,
    5 times in 15 rewards, and 6 in 18."""
    assert trained is not None
    assert active is not None
    counts = trained.health().effective_count, active.health().effective_count
    if "gamma" in more:
        n = 0.0
        held = {}
        for number in range(1, 21):
            n += 1
            if number % 3 == 0:
                n *= 0.729
            held[number] = n
        assert counts == pytest.approx((held[16], held[20]))
    else:
        assert counts == ((5, 5) if "window" in more else (16, 20))


def handed_over(log: Log, few: int, transport: httpx.AsyncBaseTransport) -> bool:
    """Train on the first records of a log, while the others come; whether the version was taken."""
    entries = [
        Append("shop", encode_event(event), {f"{number}": ""})
        for number, (event, _) in enumerate(log.records)
    ]

    async def train_and_bring() -> bool:
        store = MemoryStore()
        await store.commit(entries[:few])
        replicas = Replicas(store)
        await replicas.follow(0.0)
        state = replicas.states["shop"]
        learner = state.learners["p"]
        made = await _make(store, state, learner)
        assert made is not None
        await store.commit(entries[few:])
        async with httpx.AsyncClient(base_url="http://a", transport=transport) as client:
            return await _bring(client, store, replicas, state, learner, *made)

    return run_virtual(train_and_bring())


def test_what_came_meanwhile_is_folded_into_a_version_before_it_is_handed_over() -> None:
    """Five rewards during the training: the service has none left to fold. The net knows the four
    that it fell due at."""
    log, handed = trainable(), list[bytes]()
    rewarded(log, 4)
    few = len(log.records)
    rewarded(log, 5)

    def taken(request: httpx.Request) -> httpx.Response:
        handed.append(request.read())
        return httpx.Response(409, json={})

    assert not handed_over(log, few, httpx.MockTransport(taken))
    learner = log.state.learners["p"]
    version = read_artifact(learner, handed[0])
    assert (version.trained_to, version.rewards) == (len(log.records), 4)
    assert version.head is not None
    assert version.head.health().effective_count == 9
    report = report_of(read_meta(handed[0]))
    assert report is not None
    assert (report.rewards, report.seconds >= 0) == (4, True)


def test_the_net_of_a_shadow_is_trained_before_it_is_live() -> None:
    log, asked = Log(), list[str]()
    log.define(shop(p=TRAINED | {"shadow": True}, other={"kind": "random"}))
    rewarded(log, 4, "other")

    def taken(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        assert read_artifact(log.state.shadows["p"], request.read()).rewards == 4
        return httpx.Response(409, json={})

    store = store_of(log)

    async def train_what_is_due() -> int:
        replicas = Replicas(store)
        await replicas.follow(0.0)
        transport = httpx.MockTransport(taken)
        async with httpx.AsyncClient(base_url="http://a", transport=transport) as client:
            return await _round(store, replicas, client)

    assert run_virtual(train_what_is_due()) == 0
    assert asked == ["/experiments/shop/policies/p/versions"]


def test_a_version_of_a_policy_that_was_defined_anew_is_left() -> None:
    log = trainable()
    rewarded(log, 4)
    few = len(log.records)
    log.reset("p")

    def asked(request: httpx.Request) -> httpx.Response:
        raise AssertionError("it was handed over")

    assert not handed_over(log, few, httpx.MockTransport(asked))
