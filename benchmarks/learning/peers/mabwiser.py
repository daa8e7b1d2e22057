"""MABWiser's contextual policies: a ridge regression of the context for each arm."""

from collections.abc import Sequence
from importlib import import_module
from random import Random
from typing import Literal

import numpy as np

from benchmarks.learning.peers.base import Indexes, LeftOut, Problem
from service.features.schema import Array


class MabWiser:
    """LinUCB or LinTS with MABWiser's defaults (alpha 1), over a constant and the context.

    It cannot answer before the first reward; until then the choice is uniform.
    """

    def __init__(self, problem: Problem, policy: Literal["LinUCB", "LinTS"]) -> None:
        if problem.slates:
            raise LeftOut("chooses one arm, from all arms and not those of a request")
        mab = import_module("mabwiser.mab")  # only the extra `bench` installs it
        rule = getattr(mab.LearningPolicy, policy)(alpha=1.0)
        self._mab = mab.MAB(
            arms=list(range(len(problem.arms))), learning_policy=rule, seed=problem.seed
        )
        self._begun = False

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        if not self._begun:
            return [int(arms[rng.randrange(len(arms))])]
        return [int(self._mab.predict(_row(context)))]

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        for arm, reward in rewards:
            learn = self._mab.partial_fit if self._begun else self._mab.fit
            learn([arm], [reward], _row(context))
            self._begun = True


def _row(context: Array) -> Array:  # (1, 1 + columns)
    return np.concatenate([[1.0], context])[None]
