"""Heads on the gradient of a net: means, widths, draws, bits."""

import numpy as np
import pytest

from service.bandits.gradients import Layout, factors
from service.bandits.posterior import Observation
from service.bandits.posterior.base import Bank, digest
from service.bandits.posterior.gradient import Form, GradientHead
from service.bandits.posterior.gradient_diagonal import Diagonal
from service.bandits.posterior.gradient_full import Full
from service.bandits.posterior.ridge import RidgeHead
from tests.unit.small_net import RIDGE, SMALL, by_formula, rows_of

FORMS: tuple[Form, ...] = ("diagonal", "full")


def phi_of(count: int, seed: int) -> np.ndarray:
    last = np.random.default_rng(seed + 100).standard_normal((count, 2))
    return np.hstack([last, rows_of(SMALL, count, seed)])


def learned(form: Form, count: int = 30, noise: float | None = None) -> GradientHead:
    head = GradientHead(2, SMALL, form, RIDGE, noise)
    rng = np.random.default_rng(0)
    for row in phi_of(count, 1):
        head.observe(Observation("a", row, float(rng.standard_normal())))
    return head


@pytest.mark.parametrize("form", FORMS)
def test_means_and_noise_are_the_ridge_heads_and_widths_are_z_s(form: Form) -> None:
    head, ridge = learned(form), RidgeHead(2, RIDGE, None)
    rng = np.random.default_rng(0)
    for row in phi_of(30, 1):
        ridge.observe(Observation("a", row[:2], float(rng.standard_normal())))
    for one in (head, ridge):
        phi = phi_of(30, 1)[3][: 2 if one is ridge else None]
        one.revise(Observation("a", phi, -1.0, "key"), 0.25, 0.5)
    phi = phi_of(5, 2)
    assert np.array_equal(head.mean(phi, "abcde"), ridge.mean(phi[:, :2], "abcde"))
    assert head.health().effective_count == 30
    assert head.health().noise == ridge.posterior.noise
    if form == "full":
        C = by_formula(SMALL, phi_of(30, 1)[:, 2:], phi[:, 2:])
        expected = ridge.posterior.noise * np.sqrt(np.diag(C))
        np.testing.assert_allclose(head.width(phi, "abcde"), expected, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_draws_are_joint_and_their_marginals_are_the_papers(form: Form) -> None:
    """16,384 draws of 6 arms: N(mean, sigma^2 J Z^-1 J^T) each (Zhang et al. 2021, algorithm 1),
    means within 0.02 widths, spreads 2 percent, correlations 0.03 of those of J Z^-1 J^T."""
    head, phi, arms = learned(form), phi_of(6, 2), list("abcdef")
    drawn = head.draw(phi, arms, Bank(16_384, "moments"))
    width = head.width(phi, arms)
    assert drawn.shape == (16_384, 6)
    assert (np.abs(drawn.mean(axis=0) - head.mean(phi, arms)) < 0.02 * width).all()
    np.testing.assert_allclose(drawn.std(axis=0), width, rtol=0.02)
    for arm in range(6):
        below = np.mean(drawn[:, arm] < head.mean(phi, arms)[arm] + width[arm])
        assert below == pytest.approx(0.8413, abs=0.01)
    z = Full(SMALL, RIDGE) if form == "full" else Diagonal(SMALL, RIDGE)
    for row in phi_of(30, 1):
        z.observe(row[2:])
    C = z.covariance(phi[:, 2:])
    scale = np.sqrt(np.diag(C))
    np.testing.assert_allclose(np.corrcoef(drawn.T), C / np.outer(scale, scale), atol=0.03)


@pytest.mark.parametrize("form", FORMS)
def test_arms_of_one_row_share_one_draw(form: Form) -> None:
    head, phi = learned(form), phi_of(3, 2)[[0, 1, 0, 2, 1]]
    drawn = head.draw(phi, list("abcde"), Bank(64, "k"))
    assert np.array_equal(drawn[:, 0], drawn[:, 2])
    assert np.array_equal(drawn[:, 1], drawn[:, 4])
    alone = head.draw(phi[[0, 1, 3]], list("abd"), Bank(64, "k"))
    assert np.array_equal(drawn[:, [0, 1, 3]], alone)


def test_more_arms_than_directions_are_drawn_from_the_singular_covariance() -> None:
    """A linear net of 2 inputs: J has 3 directions, so the draws of 40 arms have 3."""
    layout = Layout((2, 1))
    x = np.random.default_rng(0).standard_normal((40, 2))
    phi = np.hstack([x, factors([(np.ones((2, 1)), np.zeros(1))], x, 1.0)])
    head = GradientHead(2, layout, "full", 1.0, 1.0)
    head.observe(Observation("0", phi[0], 1.0))
    arms = [str(n) for n in range(40)]
    drawn = head.draw(phi, arms, Bank(512, "k"))
    values = np.linalg.svd(drawn - head.mean(phi, arms), compute_uv=False)
    assert values[3] < 1e-4 * values[2]
    np.testing.assert_allclose(drawn.std(axis=0), head.width(phi, arms), rtol=0.15)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_and_restore_keep_every_bit(form: Form) -> None:
    head = learned(form, 300)
    copy = GradientHead(2, SMALL, form, RIDGE, None)
    copy.restore(head.arrays())
    assert digest(copy) == digest(head)
    phi, kept = phi_of(5, 3), digest(head)
    copy.observe(Observation("a", phi[0], 0.5))
    assert digest(head) == kept != digest(copy)
    head.observe(Observation("a", phi[0], 0.5))
    for one in (head, copy):
        one.decay(0.9)
    assert digest(copy) == digest(head)
    bank = Bank(64, "k")
    assert np.array_equal(copy.width(phi, "abcde"), head.width(phi, "abcde"))
    assert np.array_equal(copy.draw(phi, "abcde", bank), head.draw(phi, "abcde", bank))
    assert copy.health() == head.health()
