"""Simulated loss budgets: how often the service earns less than the budget allows, how soon a good
learner has the traffic, and what that costs.

A look after every 200 visits, each of a visitor of its own, at the share that the look before gave.
Broken: the sum of what is earned in expectation is below (1 - by) times what the baseline alone
would have earned, after any number of visits. Overstated: the lower bound of the ratio was ever
above the ratio, which is what the level of the sequence is about; most such streams break nothing.

BUDGET_STREAMS and BUDGET_VISITS are the numbers of streams of each world and of their visits. The
table of docs/rollouts.md is of 100 and 40000.
"""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from service.analysis.loss_budget import ALPHA, BudgetRows, budget_reading
from service.analysis.sequences import Array
from service.state.loss_budget import LossBudget, next_share

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(7_200)]

STREAMS = int(os.environ.get("BUDGET_STREAMS", "10"))
VISITS = int(os.environ.get("BUDGET_VISITS", "40000"))
BLOCK = 200
BY = 0.02


@dataclass(frozen=True)
class World:
    """What the baseline and the learner earn of a visit, in expectation.

    ratio   of the learner's reward to the baseline's; two numbers: from the first visit to one
            after LEARNT, in a straight line
    binary  rewards are 0 or 1; else of a beta distribution with two thirds of their variance
    fast    the learner has above 0.9 of the traffic within 40,000 visits, in the median
    """

    rate: float
    ratio: tuple[float, float]
    binary: bool = True
    fast: bool = False

    def earned(self, at: npt.NDArray[np.int64]) -> Array:
        """Return what the learner earns of visits, (n,)."""
        begins, ends = self.ratio
        return self.rate * (begins + (ends - begins) * np.minimum(at / LEARNT, 1))

    def draw(self, mean: Array, rng: np.random.Generator) -> Array:
        if self.binary:
            return (rng.random(len(mean)) < mean).astype(float)
        return rng.beta(mean / 2, (1 - mean) / 2)


LEARNT = 10_000
WORLDS = {
    "rare, half more": World(0.02, (1.5, 1.5)),
    "rare, twice": World(0.02, (2, 2), fast=True),
    "a fifth more of 0.1": World(0.1, (1.2, 1.2), fast=True),
    "a fifth more of 0.5": World(0.5, (1.2, 1.2), fast=True),
    "a fifth more, not binary": World(0.3, (1.2, 1.2), binary=False, fast=True),
    "improves from half to half more": World(0.2, (0.5, 1.5), fast=True),
    "nothing": World(0.2, (0, 0)),
    "half, rare": World(0.02, (0.5, 0.5)),
    "a tenth less": World(0.5, (0.9, 0.9)),
    "a tenth less, not binary": World(0.3, (0.9, 0.9), binary=False),
}


@dataclass
class Stream:
    """What became of one stream.

    shares       of the learner, of each block
    lost         share of the baseline's reward that was lost at the worst moment
    overstated   whether the lower bound of the ratio was ever above the ratio
    regret       share of what the better of both would have earned, of each visit, that was not
    """

    shares: Array
    lost: float
    overstated: bool
    regret: float


def streamed(world: World, seed: int) -> Stream:
    rng = np.random.default_rng(seed)
    own, reward = np.zeros(VISITS, dtype=bool), np.zeros(VISITS)
    chance, unit = np.zeros(VISITS), np.arange(VISITS)
    learner, overstated = world.earned(unit), False
    budget = LossBudget(policy="main", by=BY, began=1, share=BY)
    for begins in range(0, VISITS, BLOCK):
        block = slice(begins, begins + BLOCK)
        chance[block] = budget.share
        own[block] = rng.random(BLOCK) < budget.share
        reward[block] = world.draw(np.where(own[block], learner[block], world.rate), rng)
        seen = slice(0, begins + BLOCK)
        rows = BudgetRows(own[seen], chance[seen], reward[seen], unit[seen])
        reading = budget_reading(budget, rows, (0.0, 1.0), 0.0, 0.0)
        overstated |= reading.ratio > learner[seen][-1] / world.rate
        share = next_share(budget, reading, 0.0)
        if share is not None:
            budget = LossBudget(policy="main", by=BY, began=1, share=share)
    mixed, best = world.rate + chance * (learner - world.rate), np.maximum(learner, world.rate)
    lost = 1 - np.cumsum(mixed) / (world.rate * (unit + 1))
    regret = 1 - float(mixed.sum() / best.sum())
    return Stream(chance[::BLOCK], float(lost.max()), overstated, regret)


@pytest.mark.parametrize("name", WORLDS)
def test_the_service_keeps_to_its_budget(name: str) -> None:
    world, seeds = WORLDS[name], range(STREAMS)
    streams = [streamed(world, seed) for seed in seeds]
    broken = sum(each.lost > BY * (1 + 1e-9) for each in streams)
    shares = np.median([each.shares for each in streams], axis=0)
    reached = np.flatnonzero(shares > 0.9)
    regret = np.mean([each.regret for each in streams])
    overstated = sum(each.overstated for each in streams)
    print(  # noqa: T201
        f"{name}: broken {broken}, overstated {overstated} of {STREAMS}; lost at most "
        f"{100 * max(each.lost for each in streams):.2f} percent; median share {shares[-1]:.3f} "
        f"at the end, above 0.9 after {reached[0] * BLOCK if len(reached) else 'never'}; "
        f"regret {100 * regret:.1f} percent"
    )
    assert max(broken, overstated) <= binom.ppf(0.99, STREAMS, ALPHA)
    if world.fast and VISITS >= 40_000:
        assert len(reached)
    if max(world.ratio) < 1 - 2 * BY:
        assert max(each.shares.max() for each in streams) < 0.5
