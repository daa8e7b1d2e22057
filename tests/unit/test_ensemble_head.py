"""The bootstrap ensemble: its weights, batch against increments, corrections, spread, snapshots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.posterior import Bank, Observation, RidgeHead, digest
from service.bandits.posterior.ensemble import EnsembleHead, times
from service.errors import NotPositiveDefinite

BANK = Bank(16, "not looked at")
sizes = st.integers(1, 6)
counts = st.integers(0, 30)
seeds = st.integers(0, 2**32 - 1)


def world(size: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size)), rng.standard_normal(count)


def observed(size: int, count: int, seed: int, members: int = 5) -> EnsembleHead:
    head = EnsembleHead(size, 2.0, None, members, "k")
    phi, r = world(size, count, seed)
    for number, (row, reward) in enumerate(zip(phi, r, strict=True)):
        head.observe(Observation("a", row, float(reward), f"d{number}"))
    return head


def test_weights_are_poisson_1_and_independent_between_members_decisions_and_arms() -> None:
    """20,000 decisions of 4 members: means 1 and variances 1 within 4 standard errors, a share 1/e
    of zeros, correlations between members, next decisions and arms within 4 / sqrt(20,000)."""
    many = 20_000
    drawn = np.array([times(f"decision{n}", "a", 4) for n in range(many)])
    other = np.array([times(f"decision{n}", "b", 4) for n in range(many)])
    near = 4 / np.sqrt(many)
    np.testing.assert_allclose(drawn.mean(axis=0), 1.0, atol=near)
    np.testing.assert_allclose(drawn.var(axis=0), 1.0, atol=near * np.sqrt(3))  # kurtosis 4
    np.testing.assert_allclose((drawn == 0).mean(axis=0), np.exp(-1), atol=near)
    between = np.corrcoef(np.hstack([drawn[1:], drawn[:-1], other[1:]]).T)
    assert np.abs(between - np.eye(12)).max() < near


def test_more_members_leave_the_weights_of_the_first_as_they_were() -> None:
    assert np.array_equal(times("d", "a", 256)[:10], times("d", "a", 10))
    assert not np.array_equal(times("d", "a", 256), times("d", "b", 256))
    assert not np.array_equal(times("d", "a", 256), times("e", "a", 256))


def test_before_the_first_reward_the_members_are_the_prior() -> None:
    """ridge 4, noise 1: mean 0 and width |phi| / sqrt(4) for a phi of one coordinate."""
    head = EnsembleHead(3, 4.0, 1.0, 10, "k")
    assert head.mean(np.eye(3), "abc") == pytest.approx([0.0] * 3, abs=1e-12)
    assert head.width(np.eye(3), "abc") == pytest.approx([0.5] * 3)
    assert head.draw(np.eye(3), "abc", BANK).shape == (10, 3)


def test_one_observation_by_hand() -> None:
    """phi 1, reward 1, ridge 1, noise 1: member i is (w_i + z_i) / (1 + w_i)."""
    head = EnsembleHead(1, 1.0, 1.0, 6, "k")
    z = head.draw(np.ones((1, 1)), "a", BANK)[:, 0]
    head.observe(Observation("a", np.ones(1), 1.0, "d"))
    w = times("d", "a", 6)
    drawn = head.draw(np.ones((1, 1)), "a", BANK)[:, 0]
    assert drawn == pytest.approx((w + z) / (1 + w))
    assert head.mean(np.ones((1, 1)), "a") == pytest.approx([drawn.mean()])
    assert head.width(np.ones((1, 1)), "a") == pytest.approx([drawn.std()])


@given(sizes, counts, seeds)
def test_increments_with_corrections_equal_the_batch_solution(
    size: int, count: int, seed: int
) -> None:
    phi, r = world(size, count, seed)
    first = np.random.default_rng(seed + 1).standard_normal(count)
    head = EnsembleHead(size, 2.0, None, 5, "k")
    once = RidgeHead(size, 2.0, None)
    for n in range(count):
        head.observe(Observation("a", phi[n], float(first[n]), f"d{n}"))
        once.observe(Observation("a", phi[n], float(r[n])))
    for n in reversed(range(count)):
        head.revise(Observation("a", phi[n], float(r[n]), f"d{n}"), float(first[n]))
    rows = np.random.default_rng(seed + 2).standard_normal((4, size))
    z = EnsembleHead(size, 2.0, 1.0, 5, "k").draw(np.sqrt(2) * np.eye(size), "a" * size, BANK)
    batch = []
    for member in range(5):
        w = np.array([times(f"d{n}", "a", 5)[member] for n in range(count)])
        A = 2 * np.eye(size) + (w[:, None] * phi).T @ phi
        right = phi.T @ (w * r) + np.sqrt(2) * once.posterior.noise * z[member]
        batch.append(rows @ np.linalg.solve(A, right))
    np.testing.assert_allclose(head.draw(rows, "abcd", BANK), batch, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(head.mean(rows, "abcd"), np.mean(batch, axis=0), atol=1e-9)
    np.testing.assert_allclose(head.width(rows, "abcd"), np.std(batch, axis=0), atol=1e-9)


def test_a_correction_moves_b_as_if_the_reward_had_been_right() -> None:
    revised, straight = observed(3, 10, 0), observed(3, 10, 0)
    phi = np.array([1.0, -2.0, 0.5])
    revised.observe(Observation("b", phi, 0.0, "late"))
    revised.revise(Observation("b", phi, 1.0, "late"), 0.0)
    straight.observe(Observation("b", phi, 1.0, "late"))
    assert np.array_equal(revised.A, straight.A)
    np.testing.assert_allclose(revised.b, straight.b, atol=1e-12)


def test_a_correction_after_a_decay_counts_what_is_left_of_the_observation() -> None:
    revised, straight = observed(3, 10, 0), observed(3, 10, 0)
    phi = np.array([1.0, -2.0, 0.5])
    revised.observe(Observation("b", phi, 0.0, "late"))
    straight.observe(Observation("b", phi, 1.0, "late"))
    revised.decay(0.9)
    straight.decay(0.9)
    revised.revise(Observation("b", phi, 1.0, "late"), 0.0, 0.9)
    np.testing.assert_allclose(revised.b, straight.b, atol=1e-12)


def test_decay_keeps_the_prior_whole() -> None:
    """Everything forgotten is the prior, of the noise before the first reward."""
    head = observed(3, 40, 1)
    head.decay(0.5)
    assert head.health().effective_count == 20
    head.decay(0.0)
    fresh = EnsembleHead(3, 2.0, None, 5, "k")
    assert np.array_equal(head.A, fresh.A)
    assert np.array_equal(head.width(np.eye(3), "abc"), fresh.width(np.eye(3), "abc"))


def test_members_disagree_more_where_there_was_less_data() -> None:
    """1,000, 100, 10 and no observations of four directions, every other one a click; each step
    is half as much again at least."""
    head = EnsembleHead(4, 1.0, None, 50, "k")
    for number, direction in enumerate([0] * 1_000 + [1] * 100 + [2] * 10):
        head.observe(Observation("a", np.eye(4)[direction], float(number % 2), f"d{number}"))
    widths = head.width(np.eye(4), "abcd")
    assert (widths[1:] > 1.5 * widths[:-1]).all()


def test_with_400_members_and_600_rewards_the_spread_is_the_ridge_posteriors_width() -> None:
    """Within 12 percent for 8 rows: the standard error of a standard deviation of 400 is 3.5."""
    rng = np.random.default_rng(5)
    many, ridge = EnsembleHead(4, 1.0, None, 400, "k"), RidgeHead(4, 1.0, None)
    for number in range(600):
        phi = rng.standard_normal(4)
        reward = float(phi @ [0.5, -0.3, 0.1, 0.0] + 0.3 * rng.standard_normal())
        many.observe(Observation("a", phi, reward, f"d{number}"))
        ridge.observe(Observation("a", phi, reward))
    rows = rng.standard_normal((8, 4))
    np.testing.assert_allclose(many.width(rows, "a" * 8), ridge.width(rows, "a" * 8), rtol=0.12)
    off = np.abs(many.mean(rows, "a" * 8) - ridge.mean(rows, "a" * 8))
    assert (off < 4 * ridge.width(rows, "a" * 8) / np.sqrt(400)).all()


@given(sizes, counts, seeds)
def test_arrays_and_restore_keep_every_bit(size: int, count: int, seed: int) -> None:
    head = observed(size, count, seed)
    copy = EnsembleHead(size, 2.0, None, 5, "k")
    copy.restore(head.arrays())
    assert digest(copy) == digest(head)
    before = digest(head)
    phi = np.random.default_rng(seed).standard_normal((3, size))
    copy.observe(Observation("a", phi[0], 0.5, "next"))
    assert digest(head) == before
    head.observe(Observation("a", phi[0], 0.5, "next"))
    assert digest(copy) == digest(head)
    assert np.array_equal(copy.draw(phi, "abc", BANK), head.draw(phi, "abc", BANK))


def test_another_key_is_another_prior_and_the_same_weights() -> None:
    one, other = (EnsembleHead(2, 1.0, 1.0, 5, key) for key in ("one", "other"))
    for head in (one, other):
        head.observe(Observation("a", np.ones(2), 1.0, "d"))
    assert np.array_equal(one.b, other.b)
    assert not np.array_equal(one.draw(np.eye(2), "ab", BANK), other.draw(np.eye(2), "ab", BANK))


def test_health_is_that_of_settlements_counted_once() -> None:
    head = EnsembleHead(2, 1.0, None, 5, "k")
    for number, phi in enumerate(([1.0, 0.0], [0.0, 2.0], [1.0, 0.0])):
        head.observe(Observation("a", np.array(phi), 1.0, f"d{number}"))
    health = head.health()
    assert (health.smallest_eigenvalue, health.condition_number) == pytest.approx((3.0, 5 / 3))
    assert health.effective_count == 3


def test_sums_that_overflowed_are_a_typed_error() -> None:
    head = EnsembleHead(1, 1.0, 1.0, 3, "k")
    head.A[1] += np.inf
    with pytest.raises(NotPositiveDefinite):
        head.mean(np.ones((1, 1)), ["a"])
