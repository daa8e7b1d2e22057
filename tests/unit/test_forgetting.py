"""Forgetting by gamma and by a window: exact, whatever comes late, and however the head was made.

The reference is a weighted batch: a settlement counts g to the power of the decays since, with
g = gamma^decay_every, and with the reward that it has by now; what a window dropped counts 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.heads import BetaHead, DisjointRidgeHead, EnsembleHead, RidgeHead
from service.bandits.heads.ensemble import times
from service.bandits.version import NEGLIGIBLE_SHARE
from service.features.row import Row
from service.state.artifacts import read_artifact
from service.state.events import (
    Default,
    settlements_of,
)
from service.state.fold import State
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.support.training import trainer
from tests.unit.folding import NET, Log, bits, opened, replay, store_of

GAMMA = {"gamma": 0.9, "decay_every": 3}
FORGETFUL: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb", **GAMMA},
    "disjoint": {"kind": "linucb", "disjoint": True, **GAMMA},
    "popularity": {"kind": "popularity", "draws": 16, **GAMMA},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 4, **NET, **GAMMA},
    "neural": {"kind": "neural_linear_ts", "draws": 16, **NET, **GAMMA},
    "dropout": {"kind": "mc_dropout", "masks": 16, **NET, **GAMMA},
    "diagonal": {"kind": "neural_ts", "form": "diagonal", "draws": 16, **NET, **GAMMA},
}


@dataclass
class Counted:
    """One settlement: what it counts now, and the reward it has now."""

    key: str
    arm: str
    row: Row
    reward: float
    weight: float = 1.0


def weighted(log: Log, every: int = 1, share: float = 1.0) -> list[Counted]:
    """All settlements of a log with what each is to count, from the records alone."""
    rows: dict[tuple[str, str], Counted] = {}
    count = 0
    for event, _ in log.records:
        before = count
        each = [(one.decision, arm) for one in settlements_of(event) for arm in one.settled]
        for decision, outcome in each:
            pair = decision, outcome.arm
            if outcome.was is None:
                rows[pair] = Counted(*pair, outcome.row, outcome.reward)
                count += 1
            elif outcome.withdrawn:
                del rows[pair]
            else:
                rows[pair].reward = outcome.reward
        decays = count // every - before // every
        for row in rows.values():
            row.weight *= share**decays
    return list(rows.values())


def expect_batch(log: Log, rows: list[Counted]) -> None:
    """The head of policy p is what these rows, weighted, make at once: to 1e-9."""
    learner = log.state.learners["p"]
    version, head = learner.active, learner.active.head
    phi, weights = version.phi_of([row.row for row in rows]), np.array([row.weight for row in rows])
    rewards = np.array([row.reward for row in rows]) - version.offset(phi)
    assert head is not None
    if isinstance(head, BetaHead):
        for arm in {row.arm for row in rows}:
            own = [(row.weight, row.reward) for row in rows if row.arm == arm]
            expected = [1 + sum(w * r for w, r in own), 1 + sum(w * (1 - r) for w, r in own)]
            np.testing.assert_allclose(head._beta(arm), expected, atol=1e-9)
        return
    if isinstance(head, DisjointRidgeHead):
        for arm, row in head._rows.items():
            own_weights = weights * [one.arm == arm for one in rows]
            expect_sums(head.A[row], head.b[row], phi, own_weights, rewards)
            expect_scalars((head.rr[row], head.n[row]), own_weights, rewards)
        return
    if isinstance(head, EnsembleHead):
        counts = np.array([times(row.key, row.arm, 4) for row in rows]).reshape(len(rows), 4)
        for member in range(4):
            expect_sums(head.A[member], head.b[member], phi, weights * counts[:, member], rewards)
        head = head._once
    ridge: Any = head if isinstance(head, RidgeHead) else head._ridge_head  # type: ignore[attr-defined]
    expect_sums(ridge.A, ridge.b, phi[:, : len(ridge.b)], weights, rewards)
    expect_scalars((ridge.rewards.rr, ridge.n), weights, rewards)


def expect_sums(
    A: np.ndarray, b: np.ndarray, phi: np.ndarray, weights: np.ndarray, rewards: np.ndarray
) -> None:
    np.testing.assert_allclose(A, np.eye(len(b)) + (phi.T * weights) @ phi, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(b, phi.T @ (weights * rewards), rtol=1e-9, atol=1e-9)


def expect_scalars(scalars: tuple[float, float], weights: np.ndarray, rewards: np.ndarray) -> None:
    assert scalars == pytest.approx((weights @ rewards**2, weights.sum()), rel=1e-9, abs=1e-9)


def visits(log: Log, count: int, seed: int = 0) -> None:
    """Slates of one to three arms, most of them defaults of 0, and corrections of any of them,
    however long ago; a slate of three crosses a decay of every third."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        arms = rng.choice(sorted(log.state.arms), rng.integers(1, 4), replace=False)
        rewards = {str(arm): float(rng.integers(0, 2) * rng.random()) for arm in arms}
        pet = ["cat", "dog"][rng.integers(2)]
        log.settle("p", rewards, {"pet": pet, "age": float(rng.integers(0, 90))}, kind=Default)
        if rng.random() < 0.4:
            log.correct(log.settled[rng.integers(len(log.settled))], float(rng.random()))


# -- gamma --------------------------------------------------------------------------------------


def test_three_settlements_and_a_late_click_by_hand() -> None:
    """gamma 0.5 for every second: g = 0.25. Clicks 1, 0, 0 of one cell: A - 1 = 0.25 + 0.25 + 1,
    b = 0.25, n = 1.5; the second turns out 1: b = 0.25 + 0.25. The fourth halves it all: b / 4."""
    policy = {"kind": "linucb", "features": ["pet x kind"], "gamma": 0.5, "decay_every": 2}
    log = opened(policy)
    for reward in (1.0, 0.0, 0.0):
        log.settle("p", {"toy1": reward})
    head: Any = log.state.learners["p"].active.head
    assert np.diag(head.A).tolist() == [1, 1, 2.5, 1, 1, 1]
    assert (head.b[2], head.rewards.rr, head.n) == (0.25, 0.25, 1.5)
    log.correct(log.settled[1], 1.0)
    assert (head.A[2, 2], head.b[2], head.rewards.rr, head.n) == (2.5, 0.5, 0.5, 1.5)
    log.settle("p", {"toy1": 0.0})
    assert (head.A[2, 2], head.b[2], head.rewards.rr, head.n) == (1.625, 0.125, 0.125, 0.625)


@pytest.mark.parametrize("kind", FORGETFUL)
def test_a_decayed_head_is_the_weighted_batch_of_its_log(kind: str) -> None:
    """400 slates, 160 corrections with delays up to all of them; A, b, rr, n to 1e-9."""
    log = opened(FORGETFUL[kind])
    for stop in range(4):
        visits(log, 100, seed=stop)
        expect_batch(log, weighted(log, 3, 0.9**3))


def test_what_decayed_to_a_billionth_of_a_thousandth_is_no_longer_corrected() -> None:
    """Halved each settlement: after 39 more it counts 2^-39 = 1.8e-12, after 40 nothing. The
    positions that a head remembers stay as few."""
    assert 2.0**-40 < NEGLIGIBLE_SHARE < 2.0**-39
    policy = {"kind": "linucb", "gamma": 0.5, "decay_every": 1, "features": ["pet x kind"]}
    for further, weight in ((38, 2.0**-39), (39, 0.0), (60, 0.0)):
        log = opened(policy)
        first = log.settle("p", {"toy1": 0.0}, kind=Default)
        for _ in range(further):
            log.settle("p", {"bed1": 0.0}, {"pet": "dog"})
        log.correct(first, 1.0)
        head: Any = log.state.learners["p"].active.head
        assert head.b[2] == pytest.approx(weight, rel=1e-12)
        assert len(log.state.learners["p"].active.decays) <= 39


decaying = st.tuples(st.floats(0.3, 0.99), st.integers(1, 7), st.integers(0, 2**32 - 1))


@settings(max_examples=25)
@given(decaying, st.integers(1, 40))
def test_any_gamma_at_any_pace_is_the_weighted_batch_and_survives_a_snapshot(
    decay: tuple[float, int, int], count: int
) -> None:
    gamma, every, seed = decay
    log = opened({"kind": "linucb", "gamma": gamma, "decay_every": every})
    visits(log, count, seed)
    restored = State.restore(log.state.snapshot())
    visits(log, count, seed + 1)
    expect_batch(log, weighted(log, every, gamma**every))
    assert bits(replay(log.records, restored)) == bits(log.state)


@pytest.mark.parametrize("lag", [0, 7, 40])
@pytest.mark.parametrize("kind", ["neural", "dropout", "ensemble"])
def test_a_version_that_catches_up_decays_as_if_it_had_always_served(kind: str, lag: int) -> None:
    """The head it serves with is the weighted batch of all its log in its own features; what is
    corrected while it is staged, and after, counts what is left of it."""
    log = opened(FORGETFUL[kind])
    visits(log, 60)
    log.stage("p", lag)
    visits(log, 20, seed=1)
    log.activate("p")
    expect_batch(log, weighted(log, 3, 0.9**3))
    visits(log, 20, seed=2)
    expect_batch(log, weighted(log, 3, 0.9**3))
    assert bits(replay(log.records)) == bits(log.state)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["neural", "dropout", "diagonal", "ensemble"])
def test_a_trainers_rebuild_is_the_live_fold_in_its_features(kind: str) -> None:
    """Means and widths to 1e-9 of a version that met every event, correction and decay in turn;
    the trainer knows each row's last reward from the start. The features are a trained net's."""
    train = trainer()
    log = opened(FORGETFUL[kind] | {"training": {"first": 60, "epochs": 1}})
    visits(log, 50)
    learner = log.state.learners["p"]
    trained = read_artifact(learner, run_virtual(train(store_of(log), log.state, learner)))
    history = run_virtual(collect(store_of(log), log.state, learner, 60))
    rebuilt, folded = (learner.version(1, trained.encoder) for _ in range(2))
    rebuilt.refold(history.memory, history.begins)
    for position, (event, _) in enumerate(log.records[: history.watermark], 1):
        told = learner.told(settlements_of(event))
        folded.fold(position, [(one.decision, outcomes) for one, outcomes in told])
    assert (rebuilt.settled, rebuilt.decays) == (folded.settled, folded.decays)
    assert (trained.settled, trained.decays) == (folded.settled, folded.decays)
    assert rebuilt.settled >= 60
    arms = sorted(log.state.arms)
    x = np.random.default_rng(3).standard_normal((6, learner.schema.width))
    phi = rebuilt.phi(x)
    means = rebuilt.mean(phi, arms), folded.mean(phi, arms)
    np.testing.assert_allclose(*means, rtol=1e-9, atol=1e-9)
    assert rebuilt.head is not None
    assert folded.head is not None
    widths = rebuilt.head.width(phi, arms), folded.head.width(phi, arms)
    np.testing.assert_allclose(*widths, rtol=1e-9)


# -- window -------------------------------------------------------------------------------------

WINDOWED = {
    "linucb": {"kind": "linucb", "window": 16},
    "disjoint": {"kind": "linucb", "disjoint": True, "window": 16},
    "popularity": {"kind": "popularity", "draws": 16, "window": 16},
    "ensemble": {"kind": "bootstrap_ensemble", "members": 4, "window": 16, **NET},
    "neural": {"kind": "neural_linear_ts", "draws": 16, "window": 16, **NET},
    "full": {"kind": "neural_ucb", "form": "full", "window": 16, **NET},
}


def remembered(log: Log) -> list[Counted]:
    memory = log.state.learners["p"].active.memory
    assert memory is not None
    columns = memory.keys, memory.arms, list(memory.rows), memory.rewards
    return [Counted(*row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_windowed_head_is_a_fresh_one_over_its_memory(kind: str) -> None:
    """After each of 60 events it holds the latest 16 to 18 settlements, with the rewards that they
    have by now; slates of up to three are held whole."""
    log = opened(WINDOWED[kind])
    for seed in range(60):
        visits(log, 1, seed)
        held, every = remembered(log), weighted(log)
        assert held == every[-len(held) :]
        assert len(held) == len(every) if len(every) <= 18 else 14 <= len(held) <= 18
        expect_batch(log, held)
    assert len(weighted(log)) > 100
