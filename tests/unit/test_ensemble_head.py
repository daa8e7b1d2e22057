"""The bootstrap ensemble: its weights, batch against increments, corrections, spread, snapshots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import Bank, Observation, RidgeHead
from service.bandits.heads.ensemble import EnsembleHead, times

BANK = Bank(16, "not looked at")
sizes = st.integers(1, 6)
counts = st.integers(0, 30)
seeds = st.integers(0, 2**32 - 1)


def world(size: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size)), rng.standard_normal(count)


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
    """phi 1, reward 1, ridge 1, noise 1: 1, the level of all rewards, and of member i
    z_i / (1 + w_i) around it."""
    head = EnsembleHead(1, 1.0, 1.0, 6, "k")
    z = head.draw(np.ones((1, 1)), "a", BANK)[:, 0]
    head.observe(Observation("a", np.ones(1), 1.0, "d"))
    w = times("d", "a", 6)
    drawn = head.draw(np.ones((1, 1)), "a", BANK)[:, 0]
    assert drawn == pytest.approx(1 + z / (1 + w))
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
    level, batch = r.mean() if count else 0.0, []
    for member in range(5):
        w = np.array([times(f"d{n}", "a", 5)[member] for n in range(count)])
        A = 2 * np.eye(size) + (w[:, None] * phi).T @ phi
        right = phi.T @ (w * (r - level)) + np.sqrt(2) * once.posterior.noise * z[member]
        batch.append(level + rows @ np.linalg.solve(A, right))
    np.testing.assert_allclose(head.draw(rows, "abcd", BANK), batch, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(head.mean(rows, "abcd"), np.mean(batch, axis=0), atol=1e-9)
    np.testing.assert_allclose(head.width(rows, "abcd"), np.std(batch, axis=0), atol=1e-9)


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
