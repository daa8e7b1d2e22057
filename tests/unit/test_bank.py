"""The bank of draws: stratified, of unit variance, and a pure function of key and column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bandits.heads import KEPT_DRAWS, KEPT_PLACES, Bank, BetaHead

draws = st.integers(2, 600)
names = st.text(max_size=8)


@given(draws, names)
def test_a_column_is_stratified_with_mean_0_and_variance_1(m: int, name: str) -> None:
    """One draw in each of M strata of equal chance: sorted, every column is the same."""
    column = Bank(m, "key").columns([name])[:, 0]
    assert np.array_equal(np.sort(column), np.sort(Bank(m, "other").columns(["first"])[:, 0]))
    assert column.mean() == pytest.approx(0.0, abs=1e-12)
    assert column.var() == pytest.approx(1.0, rel=1e-12)


@given(st.lists(names, min_size=1, max_size=6, unique=True), names)
def test_a_column_added_moves_no_other(columns: list[str], added: str) -> None:
    narrow = Bank(64, "key").columns(columns)
    wide = Bank(64, "key").columns([added, *columns])
    assert np.array_equal(wide[:, 1:], narrow)


def test_another_key_and_another_column_order_the_draws_otherwise() -> None:
    first = Bank(512, "zoo\0lints\0000\0000").columns(["0"])[:, 0]
    for other in (
        Bank(512, "zoo\0lints\0001\0000").columns(["0"])[:, 0],
        Bank(512, "zoo\0lints\0000\0000").columns(["1"])[:, 0],
    ):
        assert not np.array_equal(first, other)
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15


def test_the_first_of_512_draws_is_pinned() -> None:
    """Logged probabilities follow from it: a change of the bank is a change of the log."""
    column = Bank(512, "key").columns(["0"])[:, 0]
    assert column[:4].tolist() == pytest.approx(PINNED, rel=1e-12)


PINNED = [-1.6681600362890157, 2.468891307337159, -0.15006956542661012, -1.4129265074247854]


def test_columns_of_callers_arms_are_not_kept_without_end() -> None:
    """16,384 draws: 1,024 columns fit, 1,500 are asked for, and each is still the same."""
    bank = Bank(16_384, "key")
    first = bank.columns(["arm0"])[:, 0].copy()
    head = BetaHead()
    for number in range(1_500):
        bank.columns([f"arm{number}"])[:, 0]
        if number < 300:
            head.draw(np.zeros((1, 0)), [f"arm{number}"], bank)
    assert len(bank._table[1]) * bank.draws <= KEPT_PLACES
    assert len(head._drawn) * bank.draws <= KEPT_DRAWS
    assert np.array_equal(bank.columns(["arm0"])[:, 0], first)
