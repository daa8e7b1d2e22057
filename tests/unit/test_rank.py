"""Slates: their chance and their slots' propensities against every permutation, counted out."""

from collections import Counter
from itertools import pairwise, permutations
from math import factorial
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.policies import rules
from service.policies.rules import Scores
from tests.unit.test_rules import scores

epsilons = st.sampled_from([0.0, 0.1, 0.75, 1.0])


def by_enumeration(table: np.ndarray, size: int, epsilon: float) -> dict[tuple[int, ...], float]:
    """Chance of every slate: each draw's ranking, equals in every order, and the uniform floor."""
    arms = table.shape[1]
    orders = list(permutations(range(arms)))
    chance: Counter[tuple[int, ...]] = Counter()
    for row in table:
        agreeing = [order for order in orders if all(row[a] >= row[b] for a, b in pairwise(order))]
        for order in agreeing:
            chance[order[:size]] += (1 - epsilon) / len(table) / len(agreeing)
    for order in orders:
        chance[order[:size]] += epsilon / len(orders)
    return dict(chance)


def slates(table: Scores, size: int, epsilon: float, seeds: int) -> list[rules.Slate]:
    return [rules.rank(table, size, epsilon, Random(seed)) for seed in range(seeds)]


@given(scores(), st.data(), epsilons)
def test_a_slates_chance_and_propensities_equal_the_enumeration(
    table: Scores, data: st.DataObject, epsilon: float
) -> None:
    arms = len(table.of)
    assume(arms <= 5)
    size = data.draw(st.integers(1, arms))
    exact = by_enumeration(table.arms, size, epsilon)
    assert sum(exact.values()) == pytest.approx(1.0)
    for slate in slates(table, size, epsilon, seeds=8):
        assert slate.chance == pytest.approx(exact[tuple(slate.arms)], abs=1e-12)
        assert slate.chance > 0
        for slot, (arm, propensity) in enumerate(zip(slate.arms, slate.propensities, strict=True)):
            marginal = sum(p for order, p in exact.items() if order[slot] == arm)
            assert propensity == pytest.approx(marginal, abs=1e-12)


@given(scores(), epsilons, st.integers(0, 99))
def test_the_first_slot_has_the_propensity_of_a_single_choice(
    table: Scores, epsilon: float, seed: int
) -> None:
    slate = rules.rank(table, len(table.of), epsilon, Random(seed))
    p = rules.floor(rules.probabilities(table), epsilon)
    assert slate.propensities[0] == pytest.approx(p[slate.arms[0]], abs=1e-12)


@given(scores(), epsilons)
def test_the_marginals_of_every_slot_sum_to_1_over_arms_and_of_every_arm_over_slots(
    table: Scores, epsilon: float
) -> None:
    arms = range(len(table.of))
    marginals = np.array(
        [[rules._in_slot(table.arms, arm, slot, epsilon) for arm in arms] for slot in arms]
    )
    np.testing.assert_allclose(marginals.sum(axis=0), 1.0, atol=1e-12)
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0, atol=1e-12)


@given(scores(), st.data(), st.integers(0, 2**63 - 1))
def test_a_slate_shows_different_arms_and_follows_from_its_seed(
    table: Scores, data: st.DataObject, seed: int
) -> None:
    size = data.draw(st.integers(1, len(table.of)))
    slate = rules.rank(table, size, 0.1, Random(seed))
    assert len(set(slate.arms)) == size
    assert slate == rules.rank(table, size, 0.1, Random(seed))


def test_one_ranking_of_three_arms_with_a_floor_of_a_tenth() -> None:
    """Shown 0, 1 of 3: 0.9 + 0.1 / 6 = 0.91667; a slot's arm has 0.9 + 0.1 / 3."""
    table = Scores(np.array([[3.0, 2.0, 1.0]]), np.arange(3))
    found = {tuple(s.arms): s for s in slates(table, 2, 0.1, seeds=200)}
    assert len(found) == factorial(3)
    assert found[0, 1].chance == pytest.approx(0.9 + 0.1 / 6)
    assert found[0, 1].propensities == pytest.approx([0.9 + 0.1 / 3] * 2)
    assert found[2, 0].chance == pytest.approx(0.1 / 6)
    assert found[2, 0].propensities == pytest.approx([0.1 / 3] * 2)


def test_three_tied_arms_are_shown_in_all_six_orders_equally() -> None:
    """3,000 slates: each order within 4 standard errors (4 x 20.4) of 500."""
    table = Scores(np.zeros((1, 1)), np.zeros(3, np.intp))
    counts = Counter(tuple(s.arms) for s in slates(table, 3, 0.0, seeds=3_000))
    assert len(counts) == 6
    assert all(abs(count - 500) < 82 for count in counts.values())
