"""The forms of Z = lambda I + sum J J^T: against the formula, in bits, in their spectra."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.gradients import Layout, factors
from service.bandits.heads.gradient_diagonal import Diagonal
from service.bandits.heads.gradient_full import Full
from service.bandits.heads.gradient_rows import Covariance, DistinctRows, cholesky, distinct
from service.bandits.networks import cold_network
from service.errors import NotPositiveDefinite
from tests.unit.small_net import RIDGE, SMALL, by_formula, rows_of, stream

seeds = st.integers(0, 2**32 - 1)

FORMS_OF_Z: dict[str, Callable[[], Covariance]] = {
    "diagonal": lambda: Diagonal(SMALL, RIDGE),
    "full": lambda: Full(SMALL, RIDGE),
    "full up to 40 rows": lambda: Full(SMALL, RIDGE, 40),
}
every_form = pytest.mark.parametrize("make", FORMS_OF_Z.values(), ids=FORMS_OF_Z.keys())


def agree(got: Covariance, asked: np.ndarray, expected: np.ndarray, share: float = 1e-9) -> None:
    np.testing.assert_allclose(got.covariance(asked), expected, rtol=share, atol=share)
    np.testing.assert_allclose(got.variances(asked), np.diag(expected), rtol=share, atol=share)


# -- full ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "among"), [(0, 1), (1, 1), (200, 20), (300, 200), (700, 150)])
def test_a_full_z_is_the_formula(count: int, among: int) -> None:
    form = Full(SMALL, RIDGE)
    seen, asked = stream(count, among, 1), rows_of(SMALL, 6, 2)
    for place, row in enumerate(seen):
        form.observe(row)
        if place % 50 == 0:
            agree(form, asked, by_formula(SMALL, seen[: place + 1], asked))
    agree(form, asked, by_formula(SMALL, seen, asked))


@settings(deadline=None, max_examples=20)
@given(seeds, st.integers(0, 150), st.integers(1, 90), st.integers(1, 100))
def test_a_full_z_is_the_formula_over_its_first_distinct_rows(
    seed: int, count: int, among: int, limit: int
) -> None:
    """Beyond the limit its variances are those of fewer rows: never too small."""
    form = Full(SMALL, RIDGE, limit)
    seen, asked = stream(count, among, seed), rows_of(SMALL, 4, seed + 1)
    first: list[bytes] = []
    for row in seen:
        form.observe(row)
        if row.tobytes() not in first and len(first) < limit:
            first.append(row.tobytes())
    held = np.array([row for row in seen if row.tobytes() in first]).reshape(-1, SMALL.width)
    agree(form, asked, by_formula(SMALL, held, asked))
    exact = np.diag(by_formula(SMALL, seen, asked))
    assert (form.variances(asked) >= exact * (1 - 1e-9)).all()


def test_a_gradient_that_is_not_finite_is_a_typed_error() -> None:
    form, rows = Full(SMALL, RIDGE), rows_of(SMALL, 66, 0)
    rows[7] = np.nan
    for row in rows:
        form.observe(row)
    with pytest.raises(NotPositiveDefinite):
        form.variances(rows[:1])


# -- diagonal --------------------------------------------------------------------------------------


def test_a_diagonal_by_hand() -> None:
    """g = relu(2 x) at x = 1: J = (1, 1, 2, 1), none zero, nu = 4. Two observations, lambda 1:
    Z = (9, 9, 33, 9), J Z^-1 J = 3/9 + 4/33. At x = -1 only the output's bias is left: 1/9. Z less
    lambda is 8, 8, 32, 8: shares of 1/7 and 4/7 with an entropy of 1.1537 nats."""
    one = np.ones((1, 1))
    layers = [(2 * one, 0 * one[0]), (one, 0 * one[0])]
    rows = factors(layers, np.array([[1.0], [-1.0]]), 1.0)
    form = Diagonal(Layout((1, 1, 1)), 1.0)
    np.testing.assert_allclose(form.variances(rows), [7, 1])
    form.observe(rows[0], 2)
    expected = [[3 / 9 + 4 / 33, 1 / 9], [1 / 9, 1 / 9]]
    np.testing.assert_allclose(form.covariance(rows), expected)
    np.testing.assert_allclose(form.variances(rows), np.diag(expected))
    assert form.spectrum() == pytest.approx((9, 33, np.exp(1.1537)), rel=1e-4)


# -- every form ------------------------------------------------------------------------------------


@every_form
def test_no_bit_depends_on_what_was_asked_or_on_a_restore(make: Callable[[], Covariance]) -> None:
    asked, seen = rows_of(SMALL, 5, 9), stream(600, 150, 4)
    quiet, watched, restored = make(), make(), make()
    for place, row in enumerate(seen):
        quiet.observe(row)
        watched.observe(row)
        restored.observe(row)
        if place % 7 == 0:
            watched.variances(asked[place % 5 :])
        if place % 37 == 0:
            arrays = {name: array.copy() for name, array in restored.arrays().items()}
            restored = make()
            restored.restore(arrays)
    for other in (watched, restored):
        for name, array in quiet.arrays().items():
            assert np.array_equal(array, other.arrays()[name]), name
        assert np.array_equal(quiet.covariance(asked), other.covariance(asked))
        assert np.array_equal(quiet.variances(asked), other.variances(asked))
        assert quiet.spectrum() == other.spectrum()
    assert quiet.covariance(asked[:0]).shape == (0, 0)
    assert quiet.variances(asked[:0]).shape == (0,)


@every_form
def test_a_row_seen_3_times_is_three_rows(make: Callable[[], Covariance]) -> None:
    asked, once, thrice = rows_of(SMALL, 5, 9), make(), make()
    for row in rows_of(SMALL, 8, 6):
        once.observe(row, 3)
        for _ in range(3):
            thrice.observe(row)
    np.testing.assert_allclose(once.covariance(asked), thrice.covariance(asked), rtol=1e-9)


@pytest.mark.parametrize(("form", "rows"), [("diagonal", 9), ("full", 200)])
def test_a_decay_leaves_lambda_and_a_share_of_the_rest(form: str, rows: int) -> None:
    """Half of 2 n observations is n of them."""
    asked, seen = rows_of(SMALL, 5, 9), rows_of(SMALL, rows, 7)
    halved, plain = FORMS_OF_Z[form](), FORMS_OF_Z[form]()
    for row in seen:
        halved.observe(row, 2)
        plain.observe(row)
    halved.variances(asked)
    halved.decay(0.5)
    for one in (halved, plain):
        one.observe(asked[0])
    np.testing.assert_allclose(halved.covariance(asked), plain.covariance(asked), rtol=1e-9)
    assert halved.spectrum() == pytest.approx(plain.spectrum(), rel=1e-9)
    halved.decay(1e-300)
    np.testing.assert_allclose(halved.variances(asked), SMALL.squares(asked) / RIDGE, rtol=1e-9)


@every_form
def test_before_the_first_reward_the_spectrum_is_lambda(make: Callable[[], Covariance]) -> None:
    assert make().spectrum() == (RIDGE, RIDGE, 0)


def test_three_rows_of_49_directions_leave_lambda_in_the_others() -> None:
    """One of them twice: the rank is that of their Gram matrix."""
    z = Full(SMALL, RIDGE)
    rows = rows_of(SMALL, 3, 8)
    for row in [*rows, rows[0]]:
        z.observe(row)
    J = SMALL.dense(rows) * np.sqrt([[2], [1], [1]])
    values = np.linalg.eigvalsh(J @ J.T)
    shares = values / values.sum()
    rank = np.exp(-shares @ np.log(shares))
    assert z.spectrum() == pytest.approx((RIDGE, RIDGE + values[-1], rank))


def test_the_spectrum_of_more_rows_than_directions_is_that_of_z() -> None:
    z, rows = Full(SMALL, RIDGE), rows_of(SMALL, 1_000, 8)
    for row in rows:
        z.observe(row)
    J = SMALL.dense(rows)
    values = np.linalg.eigvalsh(J.T @ J)
    assert z.spectrum().smallest == pytest.approx(RIDGE + values[0], rel=1e-9)
    assert z.spectrum().largest == pytest.approx(RIDGE + values[-1])


def test_beyond_1024_rows_the_spectrum_is_bounds() -> None:
    """The rank of order 2, (sum v)^2 / sum v^2, is no more than Shannon's."""
    form, rows = Full(SMALL, RIDGE), rows_of(SMALL, 1_100, 8)
    for row in rows:
        form.observe(row)
    J = SMALL.dense(rows)
    values = np.linalg.eigvalsh(J.T @ J)
    rank = values.sum() ** 2 / (values @ values)
    assert form.spectrum() == pytest.approx((RIDGE, RIDGE + 1_100, rank))


# -- rows ------------------------------------------------------------------------------------------


def test_an_x_encoded_alone_and_in_a_batch_is_one_row() -> None:
    layers = cold_network((9, 128, 64, 1), "net").layers
    x = np.random.default_rng(0).standard_normal((300, 9))
    held = DistinctRows(Layout((9, 128, 64, 1)).width, 300)
    for row in factors(layers, x, 0.1):
        held.add(row, 1)
    assert len(held) == 300
    assert held.add(factors(layers, x[:1] + 1, 0.1)[0], 1) is None
    alone = [factors(layers, one[None], 0.1)[0] for one in x]
    known = sum(held.add(row, 1) is not None for row in alone)
    assert known >= 295
    first, of = distinct(np.array([*alone[:2], alone[0], -alone[1]]))
    assert (first, of) == ([0, 1, 3], [0, 1, 0, 2])


def test_a_covariance_that_is_not_finite_is_a_typed_error() -> None:
    with pytest.raises(NotPositiveDefinite):
        cholesky(np.full((2, 2), np.nan))
    with pytest.raises(NotPositiveDefinite):
        cholesky(-np.eye(2))
