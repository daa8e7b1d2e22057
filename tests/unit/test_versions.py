"""Versions: caught up where they are staged, then activated; and artifacts that do not fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from service.bandits.encoder import COLD_SHARE
from service.bandits.memory import Memory
from service.bandits.training_set import TrainingSet
from service.errors import Damaged, UnknownSchema
from service.observe.attributions import attributions
from service.state import codec
from service.state.artifacts import SNAPSHOT_SCHEMA, pack_artifact, read_artifact
from service.state.decider import Decider
from service.state.events import Learned, VersionActivated, VersionStaged
from tests.support.tables import by_arm
from tests.unit.folding import POLICIES, Log, bits, head_of, opened, replay, shop

NEURAL, UCB, DISJOINT = POLICIES["neural"], POLICIES["neural_ucb"], POLICIES["neural_disjoint"]


def rewarded(log: Log, policy: str, count: int) -> None:
    for number in range(count):
        kind = ["food1", "toy1", "bed1"][number % 3]
        log.settle(policy, {kind: float(number % 2)}, {"pet": "dog", "age": number})


def artifact_of(log: Log) -> bytes:
    return next(blob for event, blob in reversed(log.records) if isinstance(event, VersionStaged))


def staged(policy: dict, rewards: int = 6) -> tuple[Log, bytes]:
    log = opened(policy)
    rewarded(log, "p", rewards)
    log.stage("p")
    return log, artifact_of(log)


@pytest.mark.parametrize("policy", [NEURAL, UCB, DISJOINT])
@pytest.mark.parametrize("lag", [0, 3, 5])
def test_a_version_staged_late_serves_the_head_of_all_rewards(policy: dict, lag: int) -> None:
    """6 rewards, the artifact up to `lag` events ago, 4 more while it is staged: 10 in the head."""
    log = opened(policy)
    rewarded(log, "p", 6)
    log.stage("p", lag)
    cold = head_of(log.state, "p")
    rewarded(log, "p", 4)
    assert log.state.learners["p"].active.number == 0
    assert head_of(log.state, "p") != cold
    log.activate("p")
    learner = log.state.learners["p"]
    assert (learner.active.number, learner.active.trained_to, learner.challenger) == (
        1,
        7 - lag,
        None,
    )
    assert learner.active.head is not None
    assert learner.active.head.health().effective_count == 10
    assert learner.history[-1]["position"] == len(log.records)
    assert bits(replay(log.records)) == bits(log.state)


def test_a_version_that_catches_up_learns_rewards_of_older_features() -> None:
    """One decided before the features changed and settled after: the live head learns it, too."""
    log = opened(NEURAL)
    rewarded(log, "p", 1)
    definition = shop(p=NEURAL)
    definition["features"]["context"]["member"] = {"type": "boolean", "default": False}
    log.define(definition)
    rewarded(log, "p", 3)
    log.write(structs.replace(log.settled[0].event, decision="late"))
    live = log.state.learners["p"].active.head
    assert live is not None
    assert live.health().effective_count == 4
    log.stage("p", lag=2)
    log.activate("p")
    head = log.state.learners["p"].active.head
    assert head is not None
    assert head.health().effective_count == 4


def test_a_staged_version_without_its_artifact_is_damaged() -> None:
    log, _ = staged(NEURAL)
    event, _ = log.records[-1]
    with pytest.raises(Damaged, match="of p/1 is missing"):
        replay(log.records[:-1]).apply(len(log.records), event)


def test_a_version_for_a_head_that_was_started_anew_is_passed_over() -> None:
    log, artifact = staged(NEURAL)
    stale, _ = log.records.pop()
    log.state = replay(log.records)
    log.define(shop(p=NEURAL | {"ridge": 2.0}))
    log.write(stale, artifact)
    assert log.state.learners["p"].challenger is None
    log.write(VersionActivated(at=0.0, policy="p", born=1, version=1))
    assert log.state.learners["p"].active.number == 0


@pytest.mark.parametrize(
    ("kind", "knobs", "rows"),
    [
        ("neural", {"draws": 64, "bank": 3}, 64),
        ("dropout", {"masks": 64}, 64),
        ("dropout", {"bank": 3}, 16),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_draws_that_change_around_an_activation_are_those_after_a_restart(
    kind: str, knobs: dict[str, int], rows: int, first: bool
) -> None:
    """Before it, while the version is staged, or after it."""
    log, _ = staged(POLICIES[kind])
    if not first:
        log.activate("p")
    log.define(shop(p=POLICIES[kind] | knobs))
    if first:
        log.activate("p")
    assert (
        len(Decider.serving(log.state.learners["p"]).score(np.zeros(3), log.state.candidates).rows)
        == rows
    )
    assert bits(type(log.state).restore(log.state.snapshot())) == bits(log.state)


def test_a_correction_of_a_reward_before_the_window_weighs_nothing() -> None:
    """The version holds what came from position 5 on: rewards 4 to 6 of six."""
    log = opened(NEURAL)
    rewarded(log, "p", 6)
    learner = log.state.learners["p"]
    log.stage("p")
    assert learner.challenger is not None
    learner.challenger.version.begins = 5
    log.activate("p")
    before = head_of(log.state, "p")
    log.correct(log.settled[2], 0.7)
    assert head_of(log.state, "p") == before
    log.correct(log.settled[3], 0.7)
    assert head_of(log.state, "p") != before


def test_a_cold_net_works_and_a_trained_one_stands_beside_it() -> None:
    """phi: 2 trained columns, 2 cold ones at twice their size, the 6 raw ones, the constant 1."""
    log, artifact = staged(NEURAL)
    learner = log.state.learners["p"]
    rows = np.linspace(-1, 1, 12).reshape(2, 6)
    cold = learner.active.encoder
    assert cold.cold is not None
    small = cold.cold_scale * rows
    own = [COLD_SHARE * cold.cold(small), small, [[1], [1]]]
    assert COLD_SHARE == 2
    assert np.array_equal(cold(rows), np.hstack(own))
    warm = read_artifact(learner, artifact).encoder
    assert warm.trained is not None
    assert np.array_equal(warm(rows), np.hstack([warm.trained(rows), *own]))
    assert (cold.features(6), warm.features(6)) == (9, 11)


def test_neural_ucb_scores_the_nets_output_plus_what_the_head_adds() -> None:
    log, _ = staged(UCB | {"alpha": 2.0})
    log.activate("p")
    learner, candidates = log.state.learners["p"], log.state.candidates
    context = np.array([1.0, 0.0, 1.0])
    encoder, head = learner.active.encoder, learner.active.head
    assert encoder.trained is not None
    assert encoder.output is not None
    assert head is not None
    rows = learner.view.design(context[None], candidates.x)
    weight, bias = encoder.output
    net = (encoder.trained(rows) @ weight + bias)[:, 0]
    phi = encoder(rows)
    expected = net + head.mean(phi, candidates.ids) + 2.0 * head.width(phi, candidates.ids)
    np.testing.assert_allclose(
        by_arm(Decider.serving(learner).score(context, candidates))[0], expected, rtol=1e-12
    )
    explained = attributions(Decider.serving(learner), context, candidates)
    np.testing.assert_allclose([row.mean for row in explained], net + head.mean(phi, "abcdef"))


def test_neural_ucbs_head_holds_what_the_net_leaves_of_the_reward() -> None:
    """b is the sum of (reward - g(x)) phi, rr of its square; corrections too."""
    log, _ = staged(UCB)
    log.activate("p")
    log.correct(log.settled[2], 0.75)
    learner = log.state.learners["p"]
    rows = [shown.event.settled[0] for shown in log.settled]
    phi = learner.active.phi_of([row.row for row in rows])
    left = np.array([row.reward for row in rows]) - learner.active.encoder.predict(phi)
    head: Any = learner.active.head
    np.testing.assert_allclose(head.b, phi.T @ left, atol=1e-12)
    assert head.rewards.rr == pytest.approx(np.square(left).sum())
    assert np.abs(learner.active.encoder.predict(phi)).min() > 0


# -- artifacts ----------------------------------------------------------------------------------


def changed(artifact: bytes, meta: dict[str, Any], arrays: dict[str, Any]) -> bytes:
    """The artifact with these values in place of its own; None: without them."""
    own_meta, own_arrays = codec.unpack(artifact, SNAPSHOT_SCHEMA)
    merged = {**own_meta, **meta}, {**own_arrays, **arrays}
    kept_meta, kept_arrays = (
        {name: value for name, value in part.items() if value is not None} for part in merged
    )
    return pack_artifact(kept_meta, kept_arrays)


@pytest.mark.parametrize(
    ("meta", "arrays"),
    [
        ({"version": None}, {}),
        ({}, {"net.bias0": None}),
        ({}, {"net.weight0": np.ones((5, 4))}),
        ({}, {"net.weight0": np.array([["a"] * 4] * 6)}),
        ({}, {"output.weight": None}),
        ({}, {"output.weight": np.ones((3, 1))}),
        ({}, {"output.weight": np.ones((2, 0)), "output.bias": np.ones(0)}),
        ({}, {"head.A": None}),
        ({}, {"head.A": np.eye(10)}),
        ({}, {"head.A": -np.eye(11)}),
        ({}, {"head.b": np.full(11, np.nan)}),
        ({}, {"head.rewards": np.array([3.0, 1.0, np.inf])}),
    ],
)
def test_an_artifact_that_does_not_fit_its_policy_is_damaged(meta: dict, arrays: dict) -> None:
    log, artifact = staged(UCB)
    with pytest.raises(Damaged, match="does not fit policy p"):
        read_artifact(log.state.learners["p"], changed(artifact, meta, arrays))


def test_an_artifact_of_another_policys_shape_is_damaged() -> None:
    log, _ = staged(UCB)
    for other in (DISJOINT, UCB | {"embedding": 3}, UCB | {"features": ["pet"]}):
        with pytest.raises(Damaged):
            read_artifact(log.state.learners["p"], staged(other)[1])


def test_a_cut_artifact_is_damaged_and_one_of_another_schema_unknown() -> None:
    log, artifact = staged(UCB)
    learner = log.state.learners["p"]
    with pytest.raises(Damaged):
        read_artifact(learner, artifact[:-1])
    meta, arrays = codec.unpack(artifact, SNAPSHOT_SCHEMA)
    with pytest.raises(UnknownSchema):
        read_artifact(learner, codec.pack(SNAPSHOT_SCHEMA + 1, meta, arrays))


def history_of(log: Log, count: int) -> TrainingSet:
    """The first rewards of `rewarded`, as they are read from the log."""
    learner = log.state.learners["p"]
    memory = Memory(log.state.schema.layout)
    for position, (event, _) in enumerate(log.records[1 : count + 1], 2):
        assert isinstance(event, Learned)
        for one in learner.outcomes(event):
            memory.add(position, event.decision, one)
    without = frozenset({"left out"})
    return TrainingSet(memory, None, 1, without, rewards=count, watermark=count + 1)


def test_a_version_of_the_same_net_goes_on_from_the_training_of_that_net() -> None:
    """Its next training falls due as it would have: at the double of 6 rewards, not of 8."""
    log = opened(NEURAL)
    rewarded(log, "p", 6)
    log.stage("p")
    log.activate("p")
    rewarded(log, "p", 2)
    learner = log.state.learners["p"]
    learner.active.doubt, learner.active.scaled_on = 2.0, 8
    history = history_of(log, 6)
    history.rewards = 8
    version = learner.rebuilt(learner.active.encoder, history, learner.view)
    assert (version.number, version.rewards, version.trained_to) == (2, 6, 7)
    assert (version.settled, version.begins, version.doubt) == (6, 1, 2.0)
    assert version.without == {"left out"}
    assert version.scaled_on == 8


def test_a_version_of_a_fitted_net_counts_from_its_own_training() -> None:
    log = opened(NEURAL)
    rewarded(log, "p", 6)
    log.stage("p")
    log.activate("p")
    learner = log.state.learners["p"]
    learner.active.doubt = 2.0
    history = history_of(log, 4)
    encoder = replace(learner.active.encoder, gradient_scale=2.0)
    version = learner.rebuilt(encoder, history, learner.view)
    assert (version.number, version.rewards, version.trained_to) == (2, 4, 5)
    assert (version.settled, version.doubt) == (4, 1.0)
    assert version.scaled_on == version.warm_up


def test_under_a_window_a_rebuilt_head_takes_corrections_of_what_it_remembers_alone() -> None:
    log = opened(NEURAL | {"window": 3})
    rewarded(log, "p", 6)
    learner = log.state.learners["p"]
    version = learner.rebuilt(learner.active.encoder, history_of(log, 6), learner.view)
    assert version.begins == 8
    assert version.memory is not None
    assert (version.memory.limit, len(version.memory)) == (3, 3)
