import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.linalg import JITTERS, inverse_root, spectrum, widths
from service.errors import NotPositiveDefinite


def precision_of(size: int, rows: int, seed: int) -> np.ndarray:
    phi = np.random.default_rng(seed).standard_normal((rows, size))
    return np.eye(size) + phi.T @ phi


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 9))
def test_r_transposed_r_is_the_inverse_and_r_is_lower(size: int, rows: int, seed: int) -> None:
    precision = precision_of(size, rows, seed)
    root = inverse_root(precision)
    assert np.array_equal(root, np.tril(root))
    np.testing.assert_allclose(root.T @ root @ precision, np.eye(size), atol=1e-9)


def test_a_width_is_the_square_root_of_phi_s_phi() -> None:
    root = inverse_root(np.diag([4.0, 25.0]))
    phi = np.array([[2.0, 0.0], [0.0, 5.0], [2.0, 5.0]])
    np.testing.assert_allclose(widths(root, phi), [1.0, 1.0, np.sqrt(2.0)], rtol=1e-15)


def test_an_eigenvalue_of_minus_1e_8_is_repaired_by_a_millionth_of_the_mean_diagonal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Eigenvalues 1, 1 and -1e-8: the mean diagonal is 2/3, and 6.7e-7 of the identity is added."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    indefinite = turn @ np.diag([1.0, 1.0, -1e-8]) @ turn.T
    with caplog.at_level(logging.WARNING):
        root = inverse_root(indefinite)
    added = np.linalg.inv(root.T @ root) - indefinite
    np.testing.assert_allclose(added, JITTERS[-1] * 2 / 3 * np.eye(3), atol=1e-9)
    assert "lost its definiteness to rounding" in caplog.text


def test_a_sound_matrix_is_left_as_it_is_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    precision = precision_of(5, 8, 1)
    kept = precision.copy()
    with caplog.at_level(logging.WARNING):
        inverse_root(precision)
    assert np.array_equal(precision, kept)
    assert not caplog.records


@pytest.mark.parametrize(
    "precision",
    [
        np.diag([1.0, -1.0]),
        np.diag([1.0, -1e-3]),
        np.zeros((2, 2)),
        np.diag([1.0, np.nan]),
        np.diag([1.0, np.inf]),
        np.array([[1.0, 0.0], [np.nan, 1.0]]),
        np.array([[1.0, 2.0], [2.0, 1.0]]),
    ],
)
def test_what_no_jitter_repairs_is_a_typed_error_of_size_2(precision: np.ndarray) -> None:
    with pytest.raises(NotPositiveDefinite, match="a 2 x 2 precision matrix") as caught:
        inverse_root(precision)
    assert (caught.value.size, caught.value.jitter) == (2, 1e-6)


def test_the_spectrum_has_all_directions_also_those_without_rewards() -> None:
    """Eigenvalues 1, 4, 1, 8 over a prior of 1: G has 3 and 7, shares .3 and .7 with an entropy of
    0.6109 nats. The prior alone has no direction."""
    found = spectrum(np.diag([1.0, 4.0, 1.0, 8.0]), 1.0)
    assert (found.smallest, found.largest, found.condition) == (1.0, 8.0, 8.0)
    assert found.rank == pytest.approx(np.exp(0.6109), rel=1e-4)
    assert spectrum(np.eye(3), 1.0) == (1.0, 1.0, 0.0)


def test_two_dead_columns_keep_the_smallest_eigenvalue_at_lambda_and_are_not_in_the_rank() -> None:
    """10,000 rows whose last 2 of 10 columns are 0: 8 directions of about 10,000 each."""
    phi = np.random.default_rng(1).standard_normal((10_000, 10))
    phi[:, 8:] = 0
    found = spectrum(np.eye(10) + phi.T @ phi, 1.0)
    assert found.smallest == 1.0
    assert found.condition == pytest.approx(1e4, rel=0.1)
    assert found.rank == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize("known", [1, 2, 7])
def test_the_effective_rank_of_equal_directions_is_their_number(known: int) -> None:
    values = np.full(7, 3.0)
    values[:known] = 1e6
    assert spectrum(np.diag(values), 3.0).rank == pytest.approx(known)


def test_a_direction_of_1e19_beside_3_000_hides_it_from_the_prior() -> None:
    """Rounding has left 1e5 of every other direction uncertain: the smallest is lambda."""
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    found = spectrum(turn @ np.diag([3e3, 1e19, 2e3]) @ turn.T, 1.0)
    assert (found.smallest, found.condition) == pytest.approx((1.0, 1e19))
    assert found.rank == pytest.approx(1.0)


def test_a_direction_of_1e10_beside_3_000_is_told_apart_from_the_prior() -> None:
    found = spectrum(np.diag([3_000.0, 1e10, 2.0]), 1.0)
    assert (found.smallest, found.condition) == pytest.approx((2.0, 5e9))
