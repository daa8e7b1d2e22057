"""What was learned and is taken back: heads, tallies, memories and figures are as without it."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logit

from service.bandits.heads import (
    BetaHead,
    DisjointRidgeHead,
    EnsembleHead,
    GradientHead,
    Head,
    LogisticHead,
    Observation,
    RidgeHead,
    digest,
)
from service.bandits.heads.gradient_full import Full
from service.state.events import Corrected, Default
from tests.unit.folding import Log, collected, head_of, trainable
from tests.unit.small_net import RIDGE, SMALL, rows_of
from tests.unit.test_forgetting import (
    FORGETFUL,
    WINDOWED,
    expect_batch,
    opened,
    remembered,
    visits,
    weighted,
)

SIZE = 3
HEADS: dict[str, Callable[[], Head]] = {
    "ridge": lambda: RidgeHead(SIZE, 1.0, None),
    "disjoint": lambda: DisjointRidgeHead(SIZE, 1.0, None),
    "beta": BetaHead,
    "ensemble": lambda: EnsembleHead(SIZE, 1.0, None, 4, "an ensemble"),
    "diagonal": lambda: GradientHead(2, SMALL, "diagonal", RIDGE, None),
    "full": lambda: GradientHead(2, SMALL, "full", RIDGE, None),
    "logistic": lambda: LogisticHead(SIZE, 1.0, 64),
}
"""The logistic head's minibatch has room for all observations."""


def rows(head: Head, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if isinstance(head, GradientHead):
        return np.hstack([rng.standard_normal((count, 2)), rows_of(SMALL, count, seed)])
    return rng.standard_normal((count, SIZE))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_head_is_what_it_were_without_the_observation(kind: str, share: float) -> None:
    """20 observations, of which the eighth is taken back after two decays: of it share^2 is left.
    To 1e-9, for every sum, mean and width."""
    whole, without = HEADS[kind](), HEADS[kind]()
    phi, arms = rows(whole, 20), ["a", "b"]
    rewards = (np.random.default_rng(1).random(20) < 0.5).astype(float)
    for number, row in enumerate(phi):
        arm, reward = arms[number % 2], float(rewards[number])
        for head in (whole, without):
            if number != 7 or head is whole:
                head.observe(Observation(arm, row, reward, str(number)))
            if number in (10, 15) and share < 1:
                head.decay(share)
    whole.withdraw(Observation(arms[1], phi[7], float(rewards[7]), "7"), share**2)
    kept, expected = whole.arrays(), without.arrays()
    if not isinstance(whole, GradientHead):  # which keep a row that counts nothing
        assert kept.keys() == expected.keys()
        for name in kept:
            np.testing.assert_allclose(kept[name], expected[name], rtol=1e-9, atol=1e-9)
    asked, names = rows(whole, 6, seed=3), ["a", "b"] * 3
    np.testing.assert_allclose(whole.mean(asked, names), without.mean(asked, names), rtol=1e-9)
    np.testing.assert_allclose(whole.width(asked, names), without.width(asked, names), rtol=1e-8)


@pytest.mark.parametrize("kind", HEADS)
def test_taking_all_back_leaves_the_prior(kind: str) -> None:
    """Whatever the decays before; the noise too, which would be without bounds of a billionth of a
    settlement."""
    head, fresh = HEADS[kind](), HEADS[kind]()
    phi = rows(head, 5)
    for number, row in enumerate(phi):
        head.observe(Observation("a", row, 1.0, str(number)))
        head.decay(0.7)
    for number, row in enumerate(phi):
        head.withdraw(Observation("a", row, 1.0, str(number)), 0.7 ** (5 - number))
    np.testing.assert_allclose(head.mean(phi, "aaaaa"), fresh.mean(phi, "aaaaa"), atol=1e-9)
    np.testing.assert_allclose(head.width(phi, "aaaaa"), fresh.width(phi, "aaaaa"), rtol=1e-6)


@given(st.floats(0.01, 1e4), st.floats(0.01, 1.0), st.integers(0, 9))
def test_a_row_of_any_length_leaves_a_head_that_answers(
    length: float, weight: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head, other = RidgeHead(4, 0.1, None), RidgeHead(4, 0.1, None)
    row = length * rng.standard_normal(4)
    others = rng.standard_normal((6, 4))
    head.observe(Observation("a", row, 1.0))
    head.decay(weight)
    for each in others:
        head.observe(Observation("a", each, 0.5))
    head.withdraw(Observation("a", row, 1.0), weight)
    for each in others:
        other.observe(Observation("a", each, 0.5))
    np.testing.assert_allclose(head.mean(others, "aaaaaa"), other.mean(others, "aaaaaa"), rtol=1e-3)
    assert (head.width(np.eye(4), "aaaa") <= 1.001 * other.width(np.eye(4), "aaaa")).all()


def test_a_row_that_took_the_prior_with_it_stays() -> None:
    """1 + 1e18 - 1e18 is 0 in floating point: no head could be factored."""
    head = RidgeHead(1, 1.0, None)
    head.observe(Observation("a", np.array([1e9]), 1.0))
    before = digest(head)
    head.withdraw(Observation("a", np.array([1e9]), 1.0))
    assert digest(head) == before


def test_a_full_z_counts_a_row_that_its_base_holds_until_the_base_is_made_anew() -> None:
    """Until then the width is that with the row; after 200 rows more it is that without."""
    whole, without, kept = (Full(SMALL, RIDGE, 1_000) for _ in range(3))
    seen = rows_of(SMALL, 400, 0)
    for number, row in enumerate(seen[:200]):
        for covariance in (whole, without, kept):
            if number or covariance is not without:
                covariance.observe(row)
    whole.withdraw(seen[0], 1.0)
    [own], [wide], [narrow] = (each.variances(seen[:1]) for each in (whole, without, kept))
    assert own == pytest.approx(narrow)
    assert own < wide
    for row in seen[200:]:
        whole.observe(row)
        without.observe(row)
    assert whole.variances(seen[:1]) == pytest.approx(without.variances(seen[:1]), rel=1e-6)


def test_a_logistic_head_takes_back_what_a_step_took_in_as_foretold() -> None:
    """Sigma and the counts exactly; the chance of the row rises after a miss is taken back."""
    head, rng = LogisticHead(SIZE, 1.0, 4), np.random.default_rng(2)
    phi = rng.standard_normal((40, SIZE))
    for number, row in enumerate(phi):
        head.observe(Observation("a", row, float(number % 3 == 0), str(number)))
    A, before = head.A.copy(), logit(head.mean(phi[1:2], "a")[0])
    head.withdraw(Observation("a", phi[1], 0.0, "1"))
    np.testing.assert_allclose(head.A, A - np.outer(phi[1], phi[1]), atol=1e-12)
    assert head.health().effective_count == 39
    assert logit(head.mean(phi[1:2], "a")[0]) > before + 0.01


# -- in the fold ---------------------------------------------------------------------------------


def withdrawing(log: Log, count: int, seed: int = 0) -> None:
    """Visits, after some of which an arm of any decision so far is taken back."""
    rng = Random(seed)
    for number in range(count):
        visits(log, 1, 1_000 * seed + number)
        shown = rng.choice(log.settled)
        if shown.event.settled and rng.random() < 0.4:
            log.withdraw(shown, shown.event.settled[-1].arm)
            if not shown.event.settled:
                log.settled.remove(shown)


@pytest.mark.parametrize("kind", FORGETFUL)
def test_a_decayed_head_is_the_weighted_batch_of_what_is_left(kind: str) -> None:
    log = opened(FORGETFUL[kind])
    withdrawing(log, 120)
    corrections = [event for event, _ in log.records if isinstance(event, Corrected)]
    assert any(one.withdrawn for event in corrections for one in event.settled)
    expect_batch(log, weighted(log, 3, 0.9**3))


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_windowed_head_is_a_fresh_one_over_what_is_left_of_its_memory(kind: str) -> None:
    log = opened(WINDOWED[kind])
    withdrawing(log, 60)
    expect_batch(log, remembered(log))
    known = {(row.key, row.arm): row.reward for row in weighted(log)}
    for row in remembered(log):
        assert known[row.key, row.arm] == row.reward


def test_a_memory_finds_its_rows_after_one_went() -> None:
    """Of three settlements the second goes; a correction of the third still finds it."""
    log = opened({"kind": "linucb", "window": 10})
    shown = [log.settle("p", {"toy1": 0.0}, kind=Default) for _ in range(3)]
    log.withdraw(shown[1], "toy1")
    log.correct(shown[2], 1.0)
    rows = remembered(log)
    assert [(row.key, row.reward) for row in rows] == [
        (shown[0].event.decision, 0.0),
        (shown[2].event.decision, 1.0),
    ]
    expect_batch(log, rows)


def test_tallies_are_what_they_were_without() -> None:
    log, other = (opened({"kind": "linucb"}) for _ in range(2))
    for each in (log, other):
        each.settle("p", {"food1": 1.0, "toy1": 0.5})
    shown = log.settle("p", {"toy1": 0.25, "bed1": 0.0}, kind=Default)
    log.withdraw(shown, "bed1")
    log.withdraw(shown, "toy1")
    own, twin = log.state.reward_sums["p"], other.state.reward_sums["p"]
    assert vars(own) == vars(twin)
    by_arm = log.state.arm_reward_sums["p"]
    columns = dict(zip(by_arm.rows, by_arm.columns().T.tolist(), strict=True))
    assert columns == {"food1": [1, 1, 1], "toy1": [1, 0.5, 0.25], "bed1": [0, 0, 0]}


def test_a_trainer_learns_without_it() -> None:
    """It counted as a reward when it came, so that trainings fall due as they did."""
    log = trainable()
    shown = log.settle("p", {"toy1": 0.0, "toy2": 0.0}, kind=Default)
    log.withdraw(shown, "toy2")
    log.settle("p", {"toy1": 1.0})
    history = collected(log, 3)
    assert (history.rewards, history.memory.arms) == (3, ["toy1", "toy1"])


def test_an_arm_may_be_settled_again_and_a_head_that_began_later_is_left_as_it_is() -> None:
    log = opened({"kind": "linucb"})
    log.withdraw(log.settle("p", {"toy1": 0.0}, kind=Default), "toy1")
    shown, learner = log.settle("p", {"toy1": 1.0}), log.state.learners["p"]
    head: Any = learner.active.head
    assert (head.n, log.state.reward_sums["p"].count, learner.rewards) == (1, 1, 2)
    log.reset("p")
    before = head_of(log.state, "p")
    log.withdraw(shown, "toy1")
    assert head_of(log.state, "p") == before
