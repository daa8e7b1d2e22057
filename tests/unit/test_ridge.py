"""The shared ridge head: sums by hand, batch against increments, noise, draws, snapshots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.posterior import (
    NOISE_RATE,
    NOISE_SHAPE,
    Bank,
    DisjointRidgeHead,
    Observation,
    RidgeHead,
    digest,
)
from service.errors import NotPositiveDefinite

ONE = np.array([[1.0]])
sizes = st.integers(1, 8)
counts = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)
rewards = st.floats(-10, 10)


def observed(size: int, count: int, seed: int) -> tuple[RidgeHead, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    phi, r = rng.standard_normal((count, size)), rng.standard_normal(count)
    head = RidgeHead(size, 1.0, None)
    for row, reward in zip(phi, r, strict=True):
        head.observe(Observation("a", row, float(reward)))
    return head, phi, r


def test_one_observation_halves_the_prior_error() -> None:
    """ridge 1, phi [1], reward 1 gives A 2, b 1, mean 0.5."""
    head = RidgeHead(1, ridge=1.0, noise=1.0)
    assert head.mean(ONE, ["a"]) == [0.0]
    assert head.width(ONE, ["a"]) == [1.0]
    head.observe(Observation("a", ONE[0], 1.0))
    assert head.A.tolist() == [[2.0]]
    assert head.b.tolist() == [1.0]
    assert head.mean(ONE, ["a"]) == pytest.approx([0.5])
    assert head.width(ONE, ["a"]) == pytest.approx([np.sqrt(0.5)])


@given(sizes, counts, seeds)
def test_increments_equal_the_batch_solution(size: int, count: int, seed: int) -> None:
    head, phi, r = observed(size, count, seed)
    A = np.eye(size) + phi.T @ phi
    rows = np.random.default_rng(seed + 1).standard_normal((5, size))
    mean = rows @ np.linalg.solve(A, phi.T @ r)
    variance = np.einsum("nm,mk,nk->n", rows, np.linalg.inv(A), rows)
    np.testing.assert_allclose(head.mean(rows, ["a"] * 5), mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        head.width(rows, ["a"] * 5), head.posterior.noise * np.sqrt(variance), rtol=1e-9
    )


@given(sizes, st.integers(1, 30), seeds, rewards, rewards)
def test_a_revised_reward_equals_having_seen_the_other(
    size: int, count: int, seed: int, was: float, now: float
) -> None:
    phi = np.random.default_rng(seed).standard_normal(size)
    revised, _, _ = observed(size, count, seed)
    straight, _, _ = observed(size, count, seed)
    revised.observe(Observation("a", phi, was))
    revised.revise(Observation("a", phi, now), was)
    straight.observe(Observation("a", phi, now))
    assert np.array_equal(revised.A, straight.A)
    np.testing.assert_allclose(revised.b, straight.b, atol=1e-9)
    assert revised.rr == pytest.approx(straight.rr, abs=1e-9)
    assert revised.n == straight.n


def test_learned_noise_of_two_rewards_by_hand() -> None:
    """phi 1 twice, rewards 1 and 0, ridge 1: A 3, b 1, rr 1, b^T mu 1/3;
    a_n = 1 + 1, b_n = 0.01 + (1 - 1/3)/2, variance b_n / (a_n - 1) = 0.34333."""
    head = RidgeHead(1, 1.0, None)
    head.observe(Observation("a", ONE[0], 1.0))
    head.observe(Observation("a", ONE[0], 0.0))
    variance = (NOISE_RATE + (1 - 1 / 3) / 2) / (NOISE_SHAPE + 2 / 2 - 1)
    assert (NOISE_SHAPE, NOISE_RATE) == (1.0, 0.01)
    assert variance == pytest.approx(0.3433, abs=1e-4)
    assert head.posterior.noise == pytest.approx(np.sqrt(variance), rel=1e-12)


def test_before_the_first_reward_the_noise_is_1_and_a_fixed_one_stays() -> None:
    assert RidgeHead(2, 1.0, None).posterior.noise == 1.0
    fixed = RidgeHead(1, 1.0, 0.25)
    fixed.observe(Observation("a", ONE[0], 100.0))
    assert fixed.posterior.noise == 0.25


@pytest.mark.parametrize("head", [RidgeHead(1, 1.0, None), DisjointRidgeHead(1, 1.0, None)])
def test_rewards_that_are_all_but_forgotten_leave_the_noise_of_the_prior(
    head: RidgeHead | DisjointRidgeHead,
) -> None:
    """gamma 0.1 leaves 1e-20 of 20 settlements: 1 + 1e-20 / 2 - 1 is 0."""
    head.observe(Observation("a", np.array([1.0]), 1.0))
    head.decay(1e-20)
    assert head.noise == 1.0
    assert np.isfinite(head.width(ONE, ["a"])).all()


def test_the_learned_noise_of_10000_rewards_is_that_of_the_world() -> None:
    rng = np.random.default_rng(0)
    head = RidgeHead(3, 1.0, None)
    for phi in rng.standard_normal((10_000, 3)):
        head.observe(
            Observation("a", phi, float(phi @ [0.1, -0.2, 0.5] + 0.1 * rng.standard_normal()))
        )
    assert head.posterior.noise == pytest.approx(0.1, rel=0.05)


def test_draws_have_the_posteriors_mean_and_spread() -> None:
    """16,384 draws of 6 rows of a head of width 4: means within 0.02 widths, spreads 2 percent,
    correlations within 0.03 of those of phi S phi^T."""
    head, _, _ = observed(4, 12, 3)
    rows = np.random.default_rng(8).standard_normal((6, 4))
    arms = [str(n) for n in range(6)]
    drawn = head.draw(rows, arms, Bank(16_384, "moments"))
    width = head.width(rows, arms)
    assert drawn.shape == (16_384, 6)
    assert np.abs(drawn.mean(axis=0) - head.mean(rows, arms)).max() < 0.02 * width.min()
    np.testing.assert_allclose(drawn.std(axis=0), width, rtol=0.02)
    covariance = rows @ np.linalg.inv(head.A) @ rows.T
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.corrcoef(drawn.T), covariance / np.outer(scale, scale), atol=0.03)


def test_identical_rows_share_one_draw() -> None:
    head, _, _ = observed(3, 5, 0)
    drawn = head.draw(np.ones((2, 3)), ["a", "b"], Bank(64, "k"))
    assert np.array_equal(drawn[:, 0], drawn[:, 1])


@given(sizes, counts, seeds)
def test_arrays_and_restore_keep_every_bit(size: int, count: int, seed: int) -> None:
    head, _, _ = observed(size, count, seed)
    copy = RidgeHead(size, 1.0, None)
    copy.restore(head.arrays())
    assert digest(copy) == digest(head)
    phi = np.random.default_rng(seed).standard_normal((3, size))
    for after in (head, copy):
        after.observe(Observation("a", phi[0], 0.5))
    assert digest(copy) == digest(head)
    assert np.array_equal(copy.mean(phi, "abc"), head.mean(phi, "abc"))
    assert np.array_equal(copy.width(phi, "abc"), head.width(phi, "abc"))


def test_a_restored_head_shares_no_memory_with_what_it_was_restored_from() -> None:
    head, _, _ = observed(2, 3, 0)
    copy = RidgeHead(2, 1.0, None)
    copy.restore(head.arrays())
    before = digest(head)
    copy.observe(Observation("a", np.ones(2), 1.0))
    assert digest(head) == before != digest(copy)


def test_health_counts_3_rewards_and_the_smallest_eigenvalue_grows() -> None:
    head = RidgeHead(2, 1.0, None)
    for phi in ([1.0, 0.0], [0.0, 2.0], [1.0, 0.0]):
        head.observe(Observation("a", np.array(phi), 1.0))
    health = head.health()
    assert (health.smallest_eigenvalue, health.condition_number) == pytest.approx((3.0, 5 / 3))
    assert health.effective_count == 3


def test_sums_that_overflowed_are_a_typed_error_not_a_silent_prior() -> None:
    head = RidgeHead(1, 1.0, None)
    head.A += np.inf
    with pytest.raises(NotPositiveDefinite):
        head.mean(ONE, ["a"])
