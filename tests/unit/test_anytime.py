"""What a shadow would have earned: the guess of an arm is cut so that a surprise has a bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.analysis.anytime import WEIGHT_CAP, AnytimeEstimate, known, surprise

shares = st.lists(st.floats(0.001, 1.0), min_size=3, max_size=3)


@given(shares, shares, shares, st.floats(0, 1))
def test_no_surprise_is_below_the_cap_and_both_parts_are_right_on_average(
    p: list[float], b: list[float], q: list[float], r: float
) -> None:
    """With chances b of being shown, the second part of all arms and the first make sum p r."""
    mine, theirs = (np.array(each) / sum(each) for each in (p, b))
    guess = np.array(q)
    second = surprise(mine / theirs, r, guess)
    assert second.min() >= -WEIGHT_CAP - 1e-9
    assert known(mine, theirs, guess) + theirs @ second == pytest.approx(r, abs=1e-9)


def test_a_weight_of_20_with_a_sure_guess_is_cut_to_5() -> None:
    """b .05 and p 1: the guess of 1 counts as 5 of 20, so a miss takes 5 off and not 20."""
    assert surprise(20.0, 0.0, 1.0) == -5
    assert known(np.array([1.0, 0.0]), np.array([0.05, 0.95]), np.ones(2)) == 0.25


def test_a_miss_of_large_weight_leaves_an_interval_as_if_it_took_off_the_cap() -> None:
    """99 hits of weight 1 and one miss of weight 20: V of the value is at most 5^2."""
    value = AnytimeEstimate()
    even = np.array([0.5, 0.5])
    for _ in range(99):
        value.add(even, even, np.ones(2), 0, (0.0, 1.0))
    value.add(np.array([1.0, 0.0]), np.array([0.05, 0.95]), np.ones(2), 0, (0.0, 1.0))
    low = value.terms(np.array([1.0] * 99 + [0.0]))[0][0]
    assert (low.e @ low.e, low.scale) == (25.0, WEIGHT_CAP)
