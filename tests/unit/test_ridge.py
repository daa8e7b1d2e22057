"""The shared ridge head: sums by hand, batch against increments, noise, draws, snapshots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import NOISE_RATE, NOISE_SHAPE, Bank, Observation, RidgeHead

ONE = np.array([[1.0]])
sizes = st.integers(1, 8)
counts = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)


def observed(size: int, count: int, seed: int) -> tuple[RidgeHead, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    phi, r = rng.standard_normal((count, size)), rng.standard_normal(count)
    head = RidgeHead(size, 1.0, None)
    for row, reward in zip(phi, r, strict=True):
        head.observe(Observation("a", row, float(reward)))
    return head, phi, r


def test_an_observation_moves_the_mean_from_the_level_of_all() -> None:
    """ridge 1, phi [1], reward 1 gives A 2, b 1, level 1 and mean 1; a reward of 0 at phi [0] gives
    level 0.5, and what phi [1] says is half of 1 - 0.5 above it."""
    head = RidgeHead(1, ridge=1.0, noise=1.0)
    assert head.mean(ONE, ["a"]) == [0.0]
    assert head.width(ONE, ["a"]) == [1.0]
    head.observe(Observation("a", ONE[0], 1.0))
    assert head.A.tolist() == [[2.0]]
    assert head.b.tolist() == [1.0]
    assert head.mean(ONE, ["a"]) == pytest.approx([1.0])
    head.observe(Observation("a", 0 * ONE[0], 0.0))
    assert head.mean(ONE, ["a"]) == pytest.approx([0.75])
    assert head.width(ONE, ["a"]) == pytest.approx([np.sqrt(0.5)])


@given(sizes, counts, seeds)
def test_increments_equal_the_batch_solution(size: int, count: int, seed: int) -> None:
    head, phi, r = observed(size, count, seed)
    A = np.eye(size) + phi.T @ phi
    rows = np.random.default_rng(seed + 1).standard_normal((5, size))
    level = r.mean() if count else 0.0
    mean = level + rows @ np.linalg.solve(A, phi.T @ (r - level))
    variance = np.einsum("nm,mk,nk->n", rows, np.linalg.inv(A), rows)
    np.testing.assert_allclose(head.mean(rows, ["a"] * 5), mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        head.width(rows, ["a"] * 5), head.posterior.noise * np.sqrt(variance), rtol=1e-9
    )


def test_learned_noise_of_two_rewards_by_hand() -> None:
    """phi 1 twice, rewards 1 and 0, ridge 1: level 1/2, so squares 1/2 and variance 1/4; the
    centred b is 0. a_n = 1 + 1, b_n = 0.01/4 + (1/2)/2, and b_n / (a_n - 1) = 0.2525."""
    head = RidgeHead(1, 1.0, None)
    head.observe(Observation("a", ONE[0], 1.0))
    head.observe(Observation("a", ONE[0], 0.0))
    variance = (NOISE_RATE / 4 + 1 / 4) / (NOISE_SHAPE + 2 / 2 - 1)
    assert (NOISE_SHAPE, NOISE_RATE) == (1.0, 0.01)
    assert variance == pytest.approx(0.2525, abs=1e-4)
    assert head.posterior.noise == pytest.approx(np.sqrt(variance), rel=1e-12)


def test_before_the_first_reward_the_noise_is_1_and_a_fixed_one_stays() -> None:
    assert RidgeHead(2, 1.0, None).posterior.noise == 1.0
    fixed = RidgeHead(1, 1.0, 0.25)
    fixed.observe(Observation("a", ONE[0], 100.0))
    assert fixed.posterior.noise == 0.25


def test_the_learned_noise_of_10000_rewards_is_that_of_the_world() -> None:
    rng = np.random.default_rng(0)
    head = RidgeHead(3, 1.0, None)
    for phi in rng.standard_normal((10_000, 3)):
        head.observe(
            Observation("a", phi, float(phi @ [0.1, -0.2, 0.5] + 0.1 * rng.standard_normal()))
        )
    assert head.posterior.noise == pytest.approx(0.1, rel=0.05)


def test_identical_rows_share_one_draw() -> None:
    head, _, _ = observed(3, 5, 0)
    drawn = head.draw(np.ones((2, 3)), ["a", "b"], Bank(64, "k"))
    assert np.array_equal(drawn[:, 0], drawn[:, 1])
