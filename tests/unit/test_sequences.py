"""The boundary against a published library, sums against plain loops, and how often it misses."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.analysis.sequences import (
    ConfidenceSequence,
    Terms,
    chances_of_best,
    ratio_interval,
    sum_of_squares,
    terms,
)
from service.bandits.boundary import radius

V = [0.5, 5.0, 50.0, 500.0, 5_000.0]
PUBLISHED = {
    (1.0, 0.05): [10.267060601174308, 12.23034806641408, 24.58906225534747, 75.18603128443146,
                  253.25904109124053],
    (4.0, 0.02): [47.176276377082104, 47.77097444388346, 53.335504310553006, 91.86250249075556,
                  258.8789201020347],
    (0.5, 0.001): [9.063775641996472, 13.287006804885095, 32.81215281911045, 101.71407009437416,
                   332.28773256013255],
}  # fmt: skip
"""By scale c and level: confseq 0.0.11, gamma_exponential_mixture_bound(v, level / 2, v_opt, c,
0.025) with rho = v_opt / (2 ln 20 + ln(1 + 2 ln 20)) = 10 c^2."""

numbers = st.floats(-3, 3, width=32)


@pytest.mark.parametrize(("scale", "alpha"), PUBLISHED)
def test_the_boundary_is_that_of_a_published_library(scale: float, alpha: float) -> None:
    assert radius(np.array(V), scale, alpha) == pytest.approx(PUBLISHED[scale, alpha], rel=1e-11)


@given(st.lists(st.tuples(numbers, st.integers(0, 3)), min_size=1, max_size=30))
def test_sums_of_squares_are_those_of_the_units_so_far(rows: list[tuple[float, int]]) -> None:
    e, unit = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    squares = sum_of_squares(e, unit)
    for end in range(1, len(rows) + 1):
        sums = np.bincount(unit[:end], e[:end])
        assert squares[end - 1] == pytest.approx((sums * sums).sum(), abs=1e-4)


def test_a_term_adds_the_weighed_surprise_to_the_mean_so_far() -> None:
    drawn = np.array([True, False, True, True])
    found = terms(drawn, np.array([0.5, 0.5, 0.25, 0.5]), np.array([1.0, 9.0, 0.0, 1.0]), 0.5, 1.0)
    assert found.m.tolist() == [0.5, 1.0, 1.0, 0.5]
    assert found.e.tolist() == [1.0, 0.0, -4.0, 1.0]
    assert found.scale == 4.0


def stream(
    seed: int, count: int, rates: tuple[float, float], share: float = 0.5, visitors: int = 10**9
) -> tuple[Terms, Terms, np.ndarray]:
    """Two policies among visitors who click by their own levels and stay with their policy."""
    rng = np.random.default_rng(seed)
    unit = np.unique(rng.integers(visitors, size=count), return_inverse=True)[1]
    first = (rng.random(unit.max() + 1) < share)[unit]
    level = (0.5 + rng.random(unit.max() + 1))[unit]
    clicks = (rng.random(count) < level * np.where(first, *rates)).astype(float)
    both = [
        terms(drawn, np.full(count, chance), clicks, 0.0, 1.0)
        for drawn, chance in ((first, share), (~first, 1 - share))
    ]
    return both[0], both[1], unit


@pytest.mark.parametrize("visitors", [10**9, 400])
def test_a_sequence_that_is_looked_at_all_the_time_misses_seldom(visitors: int) -> None:
    """5 percent at most: of 100 streams 11 or more miss with a chance of 1 percent."""
    missed = 0
    for seed in range(100):
        own, control, unit = stream(seed, 2_000, (0.3, 0.25), 0.3, visitors)
        means, halves = ConfidenceSequence(own - control, unit, 0.05).at(np.arange(49, 2_000, 50))
        missed += bool((np.abs(means - 0.05) > halves).any())
    assert missed <= 10


def test_an_interval_that_leaves_out_0_is_safe_from_there_on() -> None:
    own, control, unit = stream(1, 4_000, (0.5, 0.35))
    watched = ConfidenceSequence(own - control, unit, 0.05)
    means, halves = watched.at(np.arange(4_000))
    out = (np.abs(means) > halves).tolist()
    since = watched.safe_since()
    assert since is not None
    assert all(out[since:])
    assert not out[since - 1]
    equal, other, unit = stream(1, 1_000, (0.3, 0.3))
    assert ConfidenceSequence(equal - other, unit, 0.05).safe_since() is None


def test_an_estimate_is_cut_to_what_a_mean_can_be() -> None:
    own, _, unit = stream(2, 60, (0.05, 0.5))
    found = ConfidenceSequence(own, unit, 0.05).estimate()
    assert found.interval[0] < 0
    cut = found.within(0.0, 1.0)
    assert cut.interval == (0.0, found.interval[1])
    assert cut.fixed[0] >= 0


@pytest.mark.parametrize("rates", [(0.5, 0.4), (0.1, 0.4), (0.3, 0.3)])
def test_a_ratio_is_possible_where_the_scaled_difference_may_be_0(
    rates: tuple[float, float],
) -> None:
    own, control, unit = stream(3, 6_000, rates)
    found = ratio_interval(own, control, unit, 0.05)
    assert found is not None
    for end in found:
        watched = ConfidenceSequence(own - end * control, unit, 0.05)
        means, halves = watched.at(np.array([5_999]))
        assert abs(means[0]) == pytest.approx(halves[0], rel=1e-6)
    low, high = ConfidenceSequence(own - control, unit, 0.05).estimate().interval
    assert (found[0] > 1, found[1] < 1) == (low > 0, high < 0)


def test_nothing_is_a_ratio_to_what_may_be_0() -> None:
    own, control, unit = stream(4, 300, (0.3, 0.01))
    assert ratio_interval(own, control, unit, 0.05) is None


def test_chances_to_be_best_follow_the_means() -> None:
    own, control, unit = stream(5, 3_000, (0.4, 0.3))
    chances = chances_of_best([own, control, own], unit)
    assert sum(chances) == pytest.approx(1)
    assert chances[1] < 0.01
    shares = [chances_of_best([*stream(seed, 500, (0.3, 0.3))[:2]], unit[:500])[0]
              for seed in range(60)]  # fmt: skip
    assert 0.35 < np.mean(shares) < 0.65


def test_the_boundary_grows_with_the_sum_of_squares_and_the_level() -> None:
    v = np.geomspace(1e-3, 1e9, 60)
    wide, wider = radius(v, 2.0, 0.05), radius(v, 2.0, 0.01)
    assert all(a < b for a, b in pairwise(wide.tolist()))
    assert (wide < wider).all()
