"""Slates: the chance of a whole slate and of each slot's arm, against 20,000 sampled slates."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from math import exp
from random import Random

import numpy as np
import pytest

from service.bandits import ranking
from service.bandits.candidates import Candidates
from service.decide.scoring import decide
from service.state.decider import Decider
from tests.statistics.shop import FLOOR, POLICIES, context_of, frozen
from tests.statistics.test_propensities import LEVEL, fit_of
from tests.support.tables import bounds

SLATES = 20_000
SIZE = 3
CONNOISSEUR = 1


@dataclass
class Sample:
    """Slates that were shown, and what was logged of them: always the same of the same."""

    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    chances: dict[tuple[int, ...], float] = field(default_factory=dict)
    slots: dict[tuple[int, ...], float] = field(default_factory=dict)

    def fit_of_slates(self, chances: dict[tuple[int, ...], float] | None = None) -> float:
        """The chi-square test's p-value over slates; those that expect under 5 are one cell, with
        those that were never shown: of rare ones, some are and others are not."""
        chances = self.chances if chances is None else chances
        shown = sum(self.counts.values())
        names = [name for name in self.counts if chances[name] * shown >= 5]
        counts = np.array([self.counts[name] for name in names])
        p = np.array([chances[name] for name in names])
        rest = max(0.0, 1 - p.sum())
        return fit_of(np.append(counts, shown - counts.sum()), np.append(p, rest))

    def fit_of_slot(self, slot: int) -> float:
        """That of the arms of a slot after the arms that came before it most often."""
        before, shown = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        for arms, count in self.counts.items():
            before[arms[:slot]] += count
        [(most, _)] = before.most_common(1)
        for arms, count in self.counts.items():
            shown[arms[: slot + 1]] += count * (arms[:slot] == most)
        shown = +shown
        p = np.array([self.slots[arms] for arms in shown])
        rest = max(0.0, 1 - p.sum())
        return fit_of(np.array([*shown.values(), 0]), np.append(p, rest))


SAMPLES = [pytest.param("lints", FLOOR, marks=pytest.mark.slow), ("popularity", 0.0)]


@cache
def sampled(name: str, epsilon: float, draws: int = 64, count: int = SLATES) -> Sample:
    """Three of six arms, of which the first and the last are of one category."""
    state = frozen(epsilon, draws)
    learner, context = state.learners[name], context_of(CONNOISSEUR)
    candidates = Candidates(state.candidates.ids[:6], state.candidates.x[:6])
    decider = Decider.serving(learner)
    scores, rng = decider.score(context, candidates), Random(count)
    sample = Sample()
    for number in range(count):
        seed = rng.getrandbits(63)
        _, slate = ranking.draw(scores, SIZE, bounds(epsilon=decider.epsilon), seed)
        if number < 100:  # scored anew each time, it is the same
            assert decide(decider, context, candidates, SIZE, seed)[1] == slate
        arms = tuple(slate.arms)
        sample.counts[arms] += 1
        assert sample.chances.setdefault(arms, exp(slate.log_chance)) == exp(slate.log_chance)
        for slot, p in enumerate(slate.propensities, start=1):
            assert sample.slots.setdefault(arms[:slot], p) == p
    return sample


def expect_true(sample: Sample) -> None:
    assert sum(sample.chances.values()) <= 1 + 1e-9
    assert sample.fit_of_slates() > LEVEL
    for slot in range(SIZE):
        sums = Counter[tuple[int, ...]]()
        for arms, p in sample.slots.items():
            sums[arms[:-1]] += p * (len(arms) == slot + 1)  # type: ignore[assignment]
        assert max(sums.values()) <= 1 + 1e-9
        assert sample.fit_of_slot(slot) > LEVEL


@pytest.mark.parametrize(("name", "epsilon"), SAMPLES)
def test_slates_and_slots_have_the_shares_that_are_logged(name: str, epsilon: float) -> None:
    """20,000 slates of 3 of 6 arms by 64 draws, with a floor of a tenth and without."""
    expect_true(sampled(name, epsilon))


@pytest.mark.slow
def test_no_slate_is_rarer_than_the_floor_of_its_slots() -> None:
    sample = sampled("lints", FLOOR)
    assert len(sample.counts) > 60
    least = (FLOOR / 6) * (FLOOR / 5) * (FLOOR / 4)
    assert min(sample.chances.values()) >= least * (1 - 1e-12)


@pytest.mark.parametrize(("name", "epsilon"), SAMPLES)
def test_a_product_of_single_choices_is_no_chance_of_a_slate(name: str, epsilon: float) -> None:
    """Drawing the slots one after another from what is left of the first slot's probabilities is
    another distribution, and the same test says so."""
    sample = sampled(name, epsilon)
    first = {arms[0]: p for arms, p in sample.slots.items() if len(arms) == 1}
    chances = {}
    for arms in sample.counts:
        left, chances[arms] = sum(first.values()), 1.0
        for arm in arms:
            own = first.get(arm, 0.0)
            chances[arms] *= own / left
            left -= own
    assert sample.fit_of_slates(chances) < LEVEL


@pytest.mark.statistics
@pytest.mark.parametrize("draws", [64, 512])
@pytest.mark.parametrize("epsilon", [0.0, FLOOR])
@pytest.mark.parametrize("name", POLICIES)
def test_slates_of_every_policy_have_the_shares_that_are_logged(
    name: str, epsilon: float, draws: int
) -> None:
    expect_true(sampled(name, epsilon, draws))
