"""Every head: snapshots, corrections, decay, draws, health, and sums that overflowed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import logit

from service.bandits.heads import (
    Bank,
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
from service.errors import NotPositiveDefinite
from tests.unit.small_net import RIDGE, SMALL, rows_of

HEADS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: RidgeHead(3, 1.0, None),
    "disjoint": lambda: DisjointRidgeHead(3, 1.0, None),
    "ensemble": lambda: EnsembleHead(3, 1.0, None, 5, "k"),
    "logistic": lambda: LogisticHead(3, 1.0, 7),
    "diagonal": lambda: GradientHead(2, SMALL, "diagonal", RIDGE, None),
    "full": lambda: GradientHead(2, SMALL, "full", RIDGE, None),
    "beta": BetaHead,
}
every_head = pytest.mark.parametrize("kind", HEADS)


def phi_of(kind: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind in ("diagonal", "full"):
        return np.hstack(
            [rng.standard_normal((count, 2)), rows_of(SMALL, max(count, 1), seed)[:count]]
        )
    return rng.standard_normal((count, 3))


def arms_of(count: int) -> list[str]:
    """A name that ends in NUL is another arm than the one without it."""
    return [f"arm{number // 2}" + "\0" * (number % 2) for number in range(count)]


def learn(head: Head, kind: str, count: int, seed: int = 0) -> None:
    rewards = np.random.default_rng(seed).integers(0, 2, count).tolist()
    rows = zip(arms_of(count), phi_of(kind, count, seed), rewards, strict=True)
    for number, (arm, phi, reward) in enumerate(rows):
        head.observe(Observation(arm, phi, float(reward), f"d{number}"))
        phi[:] = np.nan  # a head keeps its own copy


def observed(kind: str, count: int) -> Any:
    head = HEADS[kind]()
    learn(head, kind, count)
    return head


@every_head
@pytest.mark.parametrize("count", [0, 1, 6, 16, 300])
def test_a_restored_head_goes_on_to_the_same_bits(kind: str, count: int) -> None:
    """Its memory is its own, and the rows that a stack reserves for arms do not show in a sum."""
    head, copy = observed(kind, count), HEADS[kind]()
    copy.restore(head.arrays())
    before = digest(head)
    assert digest(copy) == before
    phi, arms = phi_of(kind, 4, 9), arms_of(4)
    for one in (copy, head):
        assert digest(head) == before
        learn(one, kind, 9, seed=1)
        one.revise(Observation("arm0", phi[0], 1.0, "d0"), 0.25)
        one.decay(0.9)
    assert digest(copy) == digest(head) != before
    for read in ("mean", "width"):
        assert np.array_equal(getattr(copy, read)(phi, arms), getattr(head, read)(phi, arms))
    bank = Bank(64, "k")
    assert np.array_equal(copy.draw(phi, arms, bank), head.draw(phi, arms, bank))
    assert copy.health() == head.health()


@every_head
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_a_revised_reward_equals_having_seen_the_other(kind: str, share: float) -> None:
    """Also after a decay. A logistic head revises exactly while the observation is pending."""
    revised, straight = observed(kind, 16), observed(kind, 16)
    [phi] = phi_of(kind, 1, 9)
    for head, reward in ((revised, 0.25), (straight, 1.0)):
        head.observe(Observation("arm0", phi, reward, "late"))
        head.decay(share)
    revised.revise(Observation("arm0", phi, 1.0, "late"), 0.25, share)
    for name, array in straight.arrays().items():
        np.testing.assert_allclose(revised.arrays()[name], array, rtol=1e-9, atol=1e-9)


@every_head
def test_decay_keeps_the_prior_whole(kind: str) -> None:
    """Everything forgotten is the prior, of the noise before the first reward."""
    head = observed(kind, 42)
    head.decay(0.5)
    assert head.health().effective_count == 21
    head.decay(1e-300)
    phi, arms = phi_of(kind, 4, 9), arms_of(4)
    np.testing.assert_allclose(head.width(phi, arms), HEADS[kind]().width(phi, arms), rtol=1e-9)


@pytest.mark.parametrize("kind", ["ridge", "disjoint"])
def test_rewards_that_are_all_but_forgotten_leave_the_noise_of_the_prior(kind: str) -> None:
    """gamma 0.1 leaves 1e-20 of 20 settlements: 1 + 1e-20 / 2 - 1 is 0."""
    head = observed(kind, 1)
    head.decay(1e-20)
    assert head.noise == 1.0
    assert np.isfinite(head.width(np.eye(3), arms_of(3))).all()


def covariance(head: Any, kind: str, phi: np.ndarray) -> np.ndarray:
    if kind == "disjoint":  # arms are independent
        return np.eye(len(phi))
    if kind in ("diagonal", "full"):
        return np.asarray(head._covariance.covariance(phi[:, 2:]))
    return np.asarray(phi @ np.linalg.inv(head.A) @ phi.T)


@pytest.mark.parametrize("kind", ["ridge", "disjoint", "logistic", "diagonal", "full"])
def test_draws_have_the_posteriors_mean_spread_and_correlations(kind: str) -> None:
    """16,384 normal draws of 6 rows: means within 0.02 widths, spreads 2 percent, correlations
    0.03. Those of a gradient head are N(mean, sigma^2 J Z^-1 J^T) (Zhang et al. 2021)."""
    head, phi, arms = observed(kind, 42), phi_of(kind, 6, 8), arms_of(6)
    drawn = head.draw(phi, arms, Bank(16_384, "moments"))
    mean, width = head.mean(phi, arms), head.width(phi, arms)
    mean = logit(mean) if kind == "logistic" else mean
    assert drawn.shape == (16_384, 6)
    assert (np.abs(drawn.mean(axis=0) - mean) < 0.02 * width.min()).all()
    np.testing.assert_allclose(drawn.std(axis=0), width, rtol=0.02)
    np.testing.assert_allclose((drawn < mean + width).mean(axis=0), 0.8413, atol=0.01)
    C = covariance(head, kind, phi)
    scale = np.sqrt(np.diag(C))
    np.testing.assert_allclose(np.corrcoef(drawn.T), C / np.outer(scale, scale), atol=0.03)


@pytest.mark.parametrize("kind", ["ridge", "ensemble", "logistic"])
def test_health_counts_each_reward_once_over_all_directions(kind: str) -> None:
    """A = diag(3, 5, 1): the third direction has no reward. A less lambda is 2, 4: shares 1/3, 2/3
    with an entropy of 0.6365 nats."""
    head = HEADS[kind]()
    for number, phi in enumerate(([1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0])):
        head.observe(Observation("a", np.array(phi), 1.0, f"d{number}"))
    health = head.health()
    assert (health.smallest_eigenvalue, health.condition_number) == pytest.approx((1.0, 5.0))
    assert health.effective_rank == pytest.approx(np.exp(0.6365), rel=1e-4)
    assert health.effective_count == 3


@pytest.mark.parametrize("kind", ["ridge", "disjoint", "ensemble", "logistic"])
def test_sums_that_overflowed_are_a_typed_error_not_a_silent_prior(kind: str) -> None:
    head = observed(kind, 4)
    head.A += np.inf
    with pytest.raises(NotPositiveDefinite):
        head.width(np.eye(3), arms_of(3))
