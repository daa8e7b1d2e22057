"""Vowpal Wabbit's explorers over action-dependent features (--cb_explore_adf)."""

from collections.abc import Sequence
from importlib import import_module
from random import Random

import numpy as np

from benchmarks.learning.peers.base import Indexes, Problem
from service.features.schema import Array


class VowpalWabbit:
    """One explorer with Vowpal Wabbit's defaults: `--cb_type mtr`, crosses of context and action.

    The arm is drawn from the answered distribution, and its probability goes back with the cost.
    The other arms of a slate follow by that distribution, best first.

    In the ranking world an arm's features are its product with the context, as for our policies,
    instead of the crosses: 0.42 to 0.99 of the regret with all 1,024 crosses.

    unit   costs from 0 to 1, the range that `--regcb` assumes, instead of -reward. An unknown cost
           is predicted as 0, here the best one
    """

    def __init__(self, problem: Problem, explorer: str, *, unit: bool = False) -> None:
        low, high = problem.reward_range
        self._best, self._span = (high, high - low) if unit else (0.0, 1.0)
        if explorer.startswith("--regcb") and not unit:
            explorer += f" --cb_min_cost {-high:g} --cb_max_cost {-low:g}"
        crosses = "" if problem.slates else " -q ca"
        self.command = f"--cb_explore_adf {explorer} --cb_type mtr{crosses}"
        make = import_module("vowpalwabbit").Workspace  # only the extra `bench` installs it
        self._workspace = make(f"{self.command} --quiet --random_seed {problem.seed}")
        self._problem = problem
        self._arms = {arm: _namespace("a", row) for arm, row in enumerate(problem.rows)}
        self._given: dict[int, float] = {}

    def choose(self, context: Array, arms: Indexes, size: int, rng: Random) -> list[int]:
        if self._problem.slates:
            rows = self._problem.inputs(context, arms)
            self._arms = {int(a): _namespace("a", row) for a, row in zip(arms, rows, strict=True)}
        self._shared = "shared " + ("|c" if self._problem.slates else _namespace("c", context))
        lines = [self._shared, *(self._arms[arm] for arm in arms)]
        p = np.array(self._workspace.predict(lines))
        p /= p.sum()
        first = min(int(np.searchsorted(np.cumsum(p), rng.random(), side="right")), len(p) - 1)
        self._given = {int(arms[first]): float(p[first])}
        if size > 1:
            ranked = [int(arm) for arm in arms[np.argsort(-p, kind="stable")]]
            others = [arm for arm in ranked if arm not in self._given][: size - 1]
            self._given |= dict.fromkeys(others, 1.0)
        self._offered = arms
        return list(self._given)

    def learn(self, context: Array, rewards: Sequence[tuple[int, float]]) -> None:
        # Only the shown arms of a slate: else each of ten labels would parse 500 lines.
        offered = self._offered.tolist() if len(self._given) == 1 else list(self._given)
        for arm, reward in rewards:
            lines = [self._arms[other] for other in offered]
            place = offered.index(arm)
            cost = (self._best - reward) / self._span
            lines[place] = f"0:{cost:g}:{self._given[arm]:.9g} {lines[place]}"
            self._workspace.learn([self._shared, *lines])


def _namespace(name: str, row: Array) -> str:
    """Format the columns that are not 0; a 1 needs no value."""
    features = (
        f"{name}{index}" if row[index] == 1.0 else f"{name}{index}:{row[index]:.6g}"
        for index in np.flatnonzero(row)
    )
    return f"|{name} {' '.join(features)}"
