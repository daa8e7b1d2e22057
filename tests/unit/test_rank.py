"""Slates: every slot against the chances of the arms that are left, counted out."""

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from math import exp, log, perm, prod
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.bandits import ranking, rules
from service.bandits.inverse_gap import inverse_gap
from service.bandits.rules import TIE, Scores
from tests.support.tables import bounds, by_arm, table_of
from tests.unit.test_rules import scores


def seeds(count: int) -> list[int]:
    """As decisions have them."""
    rng = Random(count)
    return [rng.getrandbits(63) for _ in range(count)]


epsilons = st.sampled_from([0.0, 0.1, 0.75, 1.0])
untried_arms = st.sets(st.integers(0, 4), max_size=3)


def chances_left(
    scores: Scores, taken: Sequence[int], untried: Sequence[int], epsilon: float
) -> np.ndarray:  # (K,)
    """By definition: the share of the draws that each arm wins among those that are left, a tenth
    for the untried of them, and the floor."""
    table = by_arm(scores)
    left = np.setdiff1d(np.arange(table.shape[1]), taken)
    own = table[:, left]
    best = own.max(axis=1, keepdims=True)
    tied = own >= best - TIE * np.abs(best)
    p = (tied / tied.sum(axis=1, keepdims=True)).mean(axis=0)
    tries = np.isin(left, untried)
    if tries.any() and not tries.all():
        p = 0.9 * p + 0.1 * tries / tries.sum()
    found = np.zeros(table.shape[1])
    found[left] = (1 - epsilon) * p + epsilon / len(left)
    return found


close = st.sampled_from([0.0, -0.0, 1.0, 1 + 4e-13, 1 + 8e-13, 1 - 4e-13, -1.0, -1 - 4e-13])
"""Scores that tie with some of those that tie with others."""


@st.composite
def chains(draw: st.DrawFn) -> Scores:
    """M up to 12 rows of them over up to 9 groups of like arms, and K up to 14 arms."""
    groups = draw(st.integers(1, 9))
    rows = draw(arrays(float, (draw(st.integers(1, 12)), groups), elements=close))
    of = [*range(groups), *draw(st.lists(st.integers(0, groups - 1), max_size=5))]
    return table_of(rows, np.array(draw(st.permutations(of)), dtype=np.intp))


@given(scores() | chains(), st.data(), epsilons, untried_arms, st.integers(0, 2**63 - 1))
def test_a_slot_has_the_chances_of_the_arms_that_are_left(
    table: Scores, data: st.DataObject, epsilon: float, untried: set[int], seed: int
) -> None:
    arms = len(table.of)
    tries = sorted(arm for arm in untried if arm < arms)
    size = data.draw(st.integers(1, arms))
    first, slate = ranking.draw(table, size, bounds(tries, epsilon), seed)
    assert first == pytest.approx(chances_left(table, [], tries, epsilon), abs=1e-12)
    assert len(set(slate.arms)) == size
    for slot, (arm, p) in enumerate(zip(slate.arms, slate.propensities, strict=True)):
        told = chances_left(table, slate.arms[:slot], tries, epsilon)
        assert p == pytest.approx(told[arm], abs=1e-12)
    assert slate.log_chance == pytest.approx(sum(map(log, slate.propensities)))


@given(scores() | chains(), st.data(), epsilons, st.integers(0, 2**63 - 1))
def test_the_first_slot_is_drawn_as_one_arm_is(
    table: Scores, data: st.DataObject, epsilon: float, seed: int
) -> None:
    size = data.draw(st.integers(1, len(table.of)))
    first, slate = ranking.draw(table, size, bounds(epsilon=epsilon), seed)
    assert first == pytest.approx(rules.floor(rules.probabilities(table), epsilon), abs=1e-12)
    assert slate.arms[0] == rules.choose(first, rules.point_of(seed))


@given(scores(), st.data(), epsilons)
def test_the_chances_of_all_slates_sum_to_one(
    table: Scores, data: st.DataObject, epsilon: float
) -> None:
    arms = len(table.of)
    assume(arms <= 5)
    size = data.draw(st.integers(1, arms))
    chance = {
        order: prod(
            chances_left(table, order[:slot], [], epsilon)[arm] for slot, arm in enumerate(order)
        )
        for order in permutations(range(arms), size)
    }
    assert sum(chance.values()) == pytest.approx(1.0)
    for seed in seeds(8):
        _, slate = ranking.draw(table, size, bounds(epsilon=epsilon), seed)
        assert exp(slate.log_chance) == pytest.approx(chance[tuple(slate.arms)], abs=1e-12)


def test_a_formula_is_that_of_the_arms_that_are_left() -> None:
    """Inverse-gap weighting of means .6, .5, .2, .2, the last two alike: without the first, the
    second is the best of three."""
    means, like = np.array([[0.6, 0.5, 0.2]]), np.array([0, 1, 2, 2])
    table = Scores(means, like, np.array([1, 1, 2]), lambda m, n: inverse_gap(m[None], n, 20.0)[0])
    for seed in seeds(60):
        first, slate = ranking.draw(table, 2, bounds(), seed)
        assert first == pytest.approx(inverse_gap(means, np.array([1, 1, 2]), 20.0)[0][like])
        if slate.arms == [0, 1]:
            assert slate.propensities[1] == pytest.approx(
                inverse_gap(means[:, 1:], np.array([1, 2]), 20.0)[0][0]
            )
            return
    raise AssertionError("the two best were not drawn")


@pytest.mark.parametrize(("draws", "epsilon"), [(1, 0.0), (1, 0.3), (3, 0.0), (3, 1.0)])
def test_a_chance_that_no_float_holds_has_its_logarithm(draws: int, epsilon: float) -> None:
    """100 of 2,000 arms that all tie: 2,000! / 1,900! orders are alike, whatever draws and
    epsilon."""
    table = table_of(np.zeros((draws, 1)), np.zeros(2_000, np.intp))
    _, slate = ranking.draw(table, 100, bounds(epsilon=epsilon), 0)
    assert slate.log_chance == pytest.approx(-log(perm(2_000, 100)), rel=1e-14)
    assert exp(slate.log_chance) == 0.0


@pytest.mark.parametrize("groups", [1, 40, 150, 300])
def test_groups_beyond_the_reach_of_a_slate_are_left_out(groups: int) -> None:
    """Where the groups are more than a slate can reach, and where they are fewer."""
    chance = np.random.default_rng(groups)
    of = chance.permutation(np.arange(300) % groups)
    for rows in (chance.normal(size=(20, groups)), chance.integers(0, 9, (20, groups)) / 9):
        table = table_of(rows, of)
        _, slate = ranking.draw(table, 30, bounds(), 5)
        for slot, (arm, p) in enumerate(zip(slate.arms, slate.propensities, strict=True)):
            assert p == pytest.approx(chances_left(table, slate.arms[:slot], [], 0.0)[arm])


@pytest.mark.process
@pytest.mark.no_cover  # what measures coverage allocates as well
def test_like_arms_are_ranked_without_a_table_of_them() -> None:
    """10,000 arms that are alike: 512 draws of them would be 41 MB. The group that they are is one
    score a draw."""
    table = table_of(np.random.default_rng(0).normal(size=(512, 1)), np.zeros(10_000, np.intp))
    tracemalloc.start()
    try:
        ranking.draw(table, 100, bounds(), 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4e6


def test_one_ranking_of_three_arms_with_a_floor_of_a_tenth() -> None:
    """Shown 0, 1 of 3: .9 + .1 / 3 for the first, and .9 + .1 / 2 for the second of two left."""
    table, found = table_of(np.array([[3.0, 2.0, 1.0]]), np.arange(3)), Counter[tuple[int, ...]]()
    for seed in seeds(2_000):
        _, slate = ranking.draw(table, 2, bounds(epsilon=0.1), seed)
        found[tuple(slate.arms)] += 1
        if slate.arms == [0, 1]:
            assert slate.propensities == pytest.approx([0.9 + 0.1 / 3, 0.9 + 0.1 / 2])
        if slate.arms == [2, 0]:
            assert slate.propensities == pytest.approx([0.1 / 3, 0.9 + 0.1 / 2])
    assert len(found) == 6
    assert found[0, 1] == pytest.approx(2_000 * (0.9 + 0.1 / 3) * (0.9 + 0.1 / 2), abs=60)
