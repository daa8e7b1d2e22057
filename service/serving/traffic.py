"""Which policy decides: the one that a request names, or one by its share of the traffic."""

import hashlib
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import numpy as np

from service.bandits.policies import rules
from service.definition.features import Array
from service.definition.select_request import SelectRequest
from service.errors import NotFound
from service.state.fold import State
from service.state.learner import Learner


class _Split(NamedTuple):
    """Shares of the learners of one revision. chances: the normalised shares."""

    revision: int
    learners: Mapping[str, Learner]
    names: list[str]
    shares: Array
    chances: list[float]


class Traffic:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._splits: dict[str, _Split] = {}

    def assign(self, state: State, request: SelectRequest) -> tuple[Learner, float]:
        """A learner, sticky to the unit or else to the key, and the probability of its assignment.
        Raises NotFound."""
        if request.policy is not None:
            learner = state.learners.get(request.policy)
            if learner is None:
                raise NotFound("the experiment has no policy of this name", path="policy")
            return learner, 1.0
        split = self._split(state)
        sticky = request.key if request.unit is None else request.unit
        if sticky is None:
            point = self._rng.random()
        else:
            digest = hashlib.blake2b(sticky.encode(), key=state.name.encode()).digest()
            point = int.from_bytes(digest[:8], "big") / 2**64
        index = rules.choose(split.shares, point)
        return state.learners[split.names[index]], split.chances[index]

    def _split(self, state: State) -> _Split:
        """Computed anew when the experiment has changed."""
        split = self._splits.get(state.name)
        learners = state.learners
        if split is None or split.revision != state.revision or split.learners is not learners:
            shares = np.array([learner.settings.share for learner in learners.values()])
            chances = (shares / shares.sum()).tolist()
            split = _Split(state.revision, learners, list(learners), shares, chances)
            self._splits[state.name] = split
        return split
