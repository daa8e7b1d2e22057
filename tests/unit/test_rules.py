"""From scores to probabilities, and from probabilities to a choice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.bandits import rules
from service.bandits.rules import TIE, Scores
from tests.support.tables import by_arm, table_of

levels = st.sampled_from([-2.0, -1.0, 0.0, 1e-9, 1.0, 1.5])
"""Few, so that ties are common."""


@st.composite
def scores(draw: st.DrawFn) -> Scores:
    """M up to 12 rows over up to 5 distinct candidates, and K up to 8 arms that are like them."""
    distinct = draw(st.integers(1, 5))
    rows = draw(arrays(float, (draw(st.integers(1, 12)), distinct), elements=levels))
    of = [*range(distinct), *draw(st.lists(st.integers(0, distinct - 1), max_size=3))]
    return table_of(rows, np.array(draw(st.permutations(of)), dtype=np.intp))


weights = st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-6)


@given(scores(), st.floats(0, 1))
def test_probabilities_sum_to_one_and_a_floor_keeps_the_sum(table: Scores, epsilon: float) -> None:
    p = rules.probabilities(table)
    assert p.min() >= 0
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    floored = rules.floor(p, epsilon)
    assert floored.sum() == pytest.approx(1.0, abs=1e-12)
    assert floored.min() >= epsilon / len(p) - 1e-15


@given(scores())
def test_arms_scored_once_a_distinct_row_equal_arms_scored_each(table: Scores) -> None:
    each = table_of(by_arm(table), np.arange(len(table.of)))
    np.testing.assert_allclose(rules.probabilities(table), rules.probabilities(each), atol=1e-14)


def test_4_draws_over_3_arms_by_hand() -> None:
    """Wins: arm 0; arms 0 and 1 tied; arm 2; all three tied: (1 + 1/2 + 1/3) / 4, ..."""
    rows = np.array([[3.0, 1.0, 2.0], [2.0, 2.0, 1.0], [0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    p = rules.probabilities(table_of(rows, np.arange(3)))
    assert p == pytest.approx([11 / 24, 5 / 24, 8 / 24])


@pytest.mark.parametrize("best", [1.0, -1.0, 1e6, -3e-9])
def test_scores_within_1e_12_of_the_best_tie_and_those_beyond_do_not(best: float) -> None:
    within, beyond = best - 0.5 * TIE * abs(best), best - 2.5 * TIE * abs(best)
    tied = rules.probabilities(table_of(np.array([[best, within]]), np.arange(2)))
    apart = rules.probabilities(table_of(np.array([[best, beyond]]), np.arange(2)))
    assert (tied.tolist(), apart.tolist()) == ([0.5, 0.5], [1.0, 0.0])


def test_a_floor_of_a_tenth_over_4_arms_gives_each_a_fortieth() -> None:
    p = rules.floor(np.array([1.0, 0.0, 0.0, 0.0]), 0.1)
    assert p == pytest.approx([0.925, 0.025, 0.025, 0.025])


@given(weights, st.floats(0, 1, exclude_max=True))
def test_a_point_falls_to_an_index_of_positive_weight(
    given_weights: list[float], at: float
) -> None:
    index = rules.choose(np.array(given_weights), at)
    assert given_weights[index] > 0


def test_points_of_0_to_1_fall_to_their_quarters() -> None:
    p = np.array([0.25, 0.0, 0.5, 0.25])
    points = [0.0, 0.2499, 0.25, 0.74, 0.75, np.nextafter(1, 0)]
    assert [rules.choose(p, at) for at in points] == [0, 0, 2, 2, 3, 3]


@given(st.integers(0, 2**63 - 1))
def test_a_seed_points_into_0_1_by_its_first_53_bits(seed: int) -> None:
    assert 0 <= rules.point_of(seed) < 1
    assert rules.point_of(seed) == (seed // 2**10) / 2**53


def test_the_entropy_of_4_equal_arms_is_log_4_and_of_a_sure_one_0() -> None:
    assert rules.entropy([0.25] * 4) == pytest.approx(np.log(4))
    assert rules.entropy(np.array([1.0, 0.0])) == 0.0
