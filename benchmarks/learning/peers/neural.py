"""Neural baselines as in tutorials: a net 128-64-1 over the rows of `Problem.inputs`."""

from collections.abc import Sequence
from random import Random
from typing import Final

import numpy as np

from benchmarks.learning.peers.base import Indexes, Problem, top
from benchmarks.learning.peers.network import HIDDEN, Array32, Network, Replay
from service.features.schema import Array

UCB_ALPHA: Final = 3.0
"""Of NeuralUCB. Regret on Zooplus in percent of uniform's, streams 1 to 3: 37 on the first with 1;
11, 6, 31 with 2; 6, 7, 13 with 4."""

LINUCB_ALPHA: Final = 1.0
"""Of Neural-LinUCB. Likewise: 3 on the first stream; with 0.1 .2, 26, 1: it locks in."""

RIDGE: Final = 1.0
PERIOD_REWARDS: Final = 100
"""Between trainings of Neural-LinUCB, each of as many steps (H in Xu et al. 2020)."""


class _Neural:
    """Rows, network, replay, and the inverse of lambda I + sum phi phi^T."""

    def __init__(self, problem: Problem) -> None:
        rng = np.random.default_rng(problem.seed)
        self._problem = problem
        self._network = Network(problem.columns, rng)
        self._replay = Replay(problem.columns, rng)
        self._inverse = np.eye(HIDDEN[-1]) / RIDGE

    def _inputs(self, context: Array, arms: Indexes) -> Array32:
        return self._problem.inputs(context, arms).astype(np.float32)

    def _width(self, phi: Array) -> Array:
        widths: Array = np.sqrt(np.maximum(((phi @ self._inverse) * phi).sum(axis=1), 0.0))
        return widths

    def _observe(self, phi: Array) -> None:
        along = self._inverse @ phi
        self._inverse -= np.outer(along, along) / (1.0 + phi @ along)


class NeuralUcb(_Neural):
    """NeuralUCB over the last layer's gradient: g + alpha sqrt(phi^T Z^-1 phi / width), one step
    of Adam on a batch of everything seen after each reward (Zhou, Li, Gu 2020)."""

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        phi = self._network.features(self._inputs(context, arms))
        width = self._width(phi.astype(float) / np.sqrt(HIDDEN[-1]))
        return top(self._network.output(phi) + UCB_ALPHA * width, arms, size, rng)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        for arm, reward in rewards:
            x = self._inputs(context, np.array([arm]))
            self._observe(self._network.features(x)[0].astype(float) / np.sqrt(HIDDEN[-1]))
            self._replay.add(x[0], reward)
            self._network.fit_output(*self._replay.batch())


class NeuralLinUcb(_Neural):
    """LinUCB on the last layer's features, which are fitted to the present theta after each
    PERIOD_REWARDS rewards, while A and b keep what the older features said (Xu et al. 2020)."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._b = np.zeros(HIDDEN[-1])
        self._theta = np.zeros(HIDDEN[-1])

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        phi = self._network.features(self._inputs(context, arms)).astype(float)
        return top(phi @ self._theta + LINUCB_ALPHA * self._width(phi), arms, size, rng)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        for arm, reward in rewards:
            x = self._inputs(context, np.array([arm]))
            phi = self._network.features(x)[0].astype(float)
            self._observe(phi)
            self._b += reward * phi
            self._theta = self._inverse @ self._b
            self._replay.add(x[0], reward)
            if self._replay.count % PERIOD_REWARDS == 0:
                theta = self._theta.astype(np.float32)
                for _ in range(PERIOD_REWARDS):
                    self._network.fit_features(*self._replay.batch(), theta)
