"""Baselines without a net, from their formulas."""

from collections.abc import Sequence
from random import Random
from typing import Final

import numpy as np

from benchmarks.learning.peers.base import Indexes, LeftOut, Problem, top
from service.features.schema import Array

ALPHA: Final = 1.5
RIDGE: Final = 1.0


class Uniform:
    """Any arm, equally likely."""

    def __init__(self, problem: Problem) -> None:
        pass

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        return rng.sample(arms.tolist(), size)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        pass


class DisjointLinUcb:
    """LinUCB with a ridge regression of the context for each arm (Li et al. 2010, algorithm 1).

    constant   whether a 1 stands before the context, as in MABWiser here: then the choices are
               those of its LinUCB with this alpha, at a tenth of the time
    """

    def __init__(self, problem: Problem, alpha: float = ALPHA, *, constant: bool = False) -> None:
        if problem.slates:
            raise LeftOut(
                f"one model for each arm: most of {len(problem.arms):,} arms are never shown"
            )
        self._alpha, self._first = alpha, [1.0] if constant else []
        count, width = len(problem.arms), problem.context + len(self._first)
        self._inverse = np.tile(np.eye(width) / RIDGE, (count, 1, 1))
        self._b = np.zeros((count, width))
        self._theta = np.zeros((count, width))

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        x = np.concatenate([self._first, context])
        width = np.sqrt(np.maximum(self._inverse @ x @ x, 0.0))
        return top((self._theta @ x + self._alpha * width)[arms], arms, size, rng)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        x = np.concatenate([self._first, context])
        for arm, reward in rewards:
            inverse = self._inverse[arm]
            along = inverse @ x
            inverse -= np.outer(along, along) / (1.0 + x @ along)  # Sherman & Morrison 1950
            self._b[arm] += reward * x
            self._theta[arm] = inverse @ self._b[arm]


class TabularThompson:
    """Beta-Bernoulli Thompson sampling that knows the structure: contexts of equal features share
    their counts, and so do arms (Thompson 1933; Chapelle & Li 2011, algorithm 2).

    Nobody knows this structure in a new shop; the peer shows its worth.
    """

    def __init__(self, problem: Problem) -> None:
        if problem.world != "zooplus":
            raise LeftOut("knows the structure of Zooplus only")
        _, self._cell = np.unique(problem.rows, axis=0, return_inverse=True)
        self._cell = self._cell.reshape(-1)
        self._counts: dict[bytes, Array] = {}

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        counts = self._of(context)
        drawn = np.array([rng.betavariate(a, b) for a, b in counts])
        return top(drawn[self._cell[arms]], arms, size, rng)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        for arm, reward in rewards:
            self._of(context)[self._cell[arm]] += reward, 1.0 - reward

    def _of(self, context: Array) -> Array:  # (cells, 2): a and b
        return self._counts.setdefault(context.tobytes(), np.ones((self._cell.max() + 1, 2)))
