"""Slates: their chance and their slots' propensities against every permutation, counted out."""

import tracemalloc
from collections import Counter
from itertools import pairwise, permutations
from math import exp, factorial, log, perm
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.bandits import ranking, rules
from service.bandits.rules import TIE, Scores
from tests.support.tables import by_arm, table_of
from tests.unit.test_rules import scores

epsilons = st.sampled_from([0.0, 0.1, 0.75, 1.0])


def slot_by_slot(scores: Scores, size: int, epsilon: float, rng: Random) -> rules.Slate:
    """`ranking.rank` over the whole table of draws and arms: its every bit is what a log holds."""
    table = by_arm(scores)
    drawn = rng.randrange(len(table))
    key = table[drawn] if rng.random() >= epsilon else np.zeros(table.shape[1])
    shown: list[int] = []
    own = key.copy()
    for _ in range(size):
        tied = np.flatnonzero(own >= own.max() - TIE * np.abs(own.max()))
        shown.append(int(tied[rng.randrange(len(tied))]))
        own[shown[-1]] = -np.inf
    ordered = -np.sort(-table, axis=1)[:, : size + 1]
    if (ordered[:, 1:] < ordered[:, :-1] - TIE * np.abs(ordered[:, :-1])).all():
        hits = np.argsort(-table, axis=1)[:, :size] == shown
        shares = (1 - epsilon) * hits.mean(axis=0) + epsilon / table.shape[1]
        whole = float(hits.all(axis=1).mean())
        chance = ranking.log_chance(whole, 0, epsilon, perm(table.shape[1], size))
        return rules.Slate(shown, shares.tolist(), chance)
    reached, left = np.ones(len(table)), table.copy()
    propensities = []
    for slot, arm in enumerate(shown):
        best = left.max(axis=1, keepdims=True)
        highest = left >= best - TIE * np.abs(best)
        reached *= np.where(highest[:, arm], 1 / highest.sum(axis=1), 0.0)
        left[:, arm] = -np.inf
        margin = TIE * np.maximum(np.abs(table[:, [arm]]), np.abs(table))
        above = (table > table[:, [arm]] + margin).sum(axis=1)
        level = (np.abs(table - table[:, [arm]]) <= margin).sum(axis=1)
        share = np.where((above <= slot) & (slot < above + level), 1 / level, 0.0)
        propensities.append(float((1 - epsilon) * share.mean() + epsilon / table.shape[1]))
    chance = ranking.log_chance(float(reached.mean()), 0, epsilon, perm(table.shape[1], size))
    return rules.Slate(shown, propensities, chance)


close = st.sampled_from([0.0, -0.0, 1.0, 1 + 4e-13, 1 + 8e-13, 1 - 4e-13, -1.0, -1 - 4e-13])
"""Scores that tie with some of those that tie with others."""


@st.composite
def chains(draw: st.DrawFn) -> Scores:
    """M up to 12 rows of them over up to 9 groups of like arms, and K up to 14 arms."""
    groups = draw(st.integers(1, 9))
    rows = draw(arrays(float, (draw(st.integers(1, 12)), groups), elements=close))
    of = [*range(groups), *draw(st.lists(st.integers(0, groups - 1), max_size=5))]
    return table_of(rows, np.array(draw(st.permutations(of)), dtype=np.intp))


@given(scores() | chains(), st.data(), epsilons, st.integers(0, 99), st.sampled_from([0, 2**16]))
def test_a_slate_has_the_bits_of_the_whole_table(
    table: Scores, data: st.DataObject, epsilon: float, seed: int, at_once: int
) -> None:
    """By either way of counting."""
    size = data.draw(st.integers(1, len(table.of)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "DIRECT_COMPARISONS", at_once)
        found = ranking.rank(table, size, epsilon, Random(seed))
    assert found == slot_by_slot(table, size, epsilon, Random(seed))


@pytest.mark.parametrize(("draws", "epsilon"), [(1, 0.0), (1, 0.3), (3, 0.0), (3, 1.0)])
def test_a_chance_that_no_float_holds_has_its_logarithm(draws: int, epsilon: float) -> None:
    """100 of 2,000 arms that all tie: 2,000! / 1,900! orders are alike, whatever draws and
    epsilon."""
    table = table_of(np.zeros((draws, 1)), np.zeros(2_000, np.intp))
    slate = ranking.rank(table, 100, epsilon, Random(0))
    assert slate.log_chance == pytest.approx(-log(perm(2_000, 100)), rel=1e-14)
    assert exp(slate.log_chance) == 0.0


def test_a_ranking_by_the_floor_alone_has_its_logarithm() -> None:
    """Distinct scores, and a permutation that the floor of 1e-9 draws: 1e-9 1,900! / 2,000!."""
    table = table_of(np.arange(2_000.0)[None], np.arange(2_000))
    orders = perm(2_000, 100)
    assert ranking.log_chance(0.0, 0, 1e-9, orders) == pytest.approx(log(1e-9) - log(orders))
    certain = ranking.rank(table, 100, 0.5, Random(1))
    assert certain.log_chance in (log(0.5), log(0.5) - log(orders))


def test_draws_whose_chances_lie_far_apart_are_averaged() -> None:
    """One of two draws ranks 100 arms for certain, the other has them all tie: half of 1."""
    rows = np.stack([np.arange(2_000.0), np.zeros(2_000)])
    table = table_of(rows, np.arange(2_000))
    found = {round(ranking.rank(table, 100, 0.0, Random(seed)).log_chance) for seed in range(8)}
    assert found == {round(log(0.5)), round(log(0.5) - log(perm(2_000, 100)))}


@pytest.mark.parametrize("groups", [1, 40, 150, 300])
def test_a_slate_of_many_arms_has_the_bits_of_the_whole_table(groups: int) -> None:
    """Where the groups are more than a slate can reach, and where they are fewer."""
    chance = np.random.default_rng(groups)
    of = chance.permutation(np.arange(300) % groups)
    for rows in (chance.normal(size=(20, groups)), chance.integers(0, 9, (20, groups)) / 9):
        table = table_of(rows, of)
        for seed in range(5):
            found = ranking.rank(table, 30, 0.0, Random(seed))
            assert found == slot_by_slot(table, 30, 0.0, Random(seed))


@pytest.mark.process
@pytest.mark.no_cover  # what measures coverage allocates as well
def test_like_arms_are_ranked_without_a_table_of_them() -> None:
    """10,000 arms that are alike: 512 draws of them would be 41 MB, and took 6 s to look through
    for 100 slots. The group that they are is one score a draw."""
    table = table_of(np.random.default_rng(0).normal(size=(512, 1)), np.zeros(10_000, np.intp))
    tracemalloc.start()
    try:
        ranking.rank(table, 100, 0.0, Random(0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4e6


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
    return [ranking.rank(table, size, epsilon, Random(seed)) for seed in range(seeds)]


@given(scores(), st.data(), epsilons)
def test_a_slates_chance_and_propensities_equal_the_enumeration(
    table: Scores, data: st.DataObject, epsilon: float
) -> None:
    arms = len(table.of)
    assume(arms <= 5)
    size = data.draw(st.integers(1, arms))
    exact = by_enumeration(by_arm(table), size, epsilon)
    assert sum(exact.values()) == pytest.approx(1.0)
    for slate in slates(table, size, epsilon, seeds=8):
        assert exp(slate.log_chance) == pytest.approx(exact[tuple(slate.arms)], abs=1e-12)
        for slot, (arm, propensity) in enumerate(zip(slate.arms, slate.propensities, strict=True)):
            marginal = sum(p for order, p in exact.items() if order[slot] == arm)
            assert propensity == pytest.approx(marginal, abs=1e-12)


def test_one_ranking_of_three_arms_with_a_floor_of_a_tenth() -> None:
    """Shown 0, 1 of 3: 0.9 + 0.1 / 6 = 0.91667; a slot's arm has 0.9 + 0.1 / 3."""
    table = table_of(np.array([[3.0, 2.0, 1.0]]), np.arange(3))
    found = {tuple(s.arms): s for s in slates(table, 2, 0.1, seeds=200)}
    assert len(found) == factorial(3)
    assert exp(found[0, 1].log_chance) == pytest.approx(0.9 + 0.1 / 6)
    assert found[0, 1].propensities == pytest.approx([0.9 + 0.1 / 3] * 2)
    assert exp(found[2, 0].log_chance) == pytest.approx(0.1 / 6)
    assert found[2, 0].propensities == pytest.approx([0.1 / 3] * 2)
