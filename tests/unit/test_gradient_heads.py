"""Heads on the gradient of a net: means, widths, draws, bits."""

import numpy as np
import pytest

from service.bandits.gradients import Layout, factors
from service.bandits.heads import Observation
from service.bandits.heads.base import Bank
from service.bandits.heads.gradient import Form, GradientHead
from service.bandits.heads.ridge import RidgeHead
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
