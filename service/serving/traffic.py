"""Which policy decides: the one that a request names, or one by its share of the traffic."""

import hashlib
from collections.abc import Mapping
from math import log
from random import Random
from typing import NamedTuple

import numpy as np

from service.bandits import rules
from service.definition.select_request import SelectRequest
from service.errors import NotFound
from service.features.schema import Array
from service.naming import not_found, quoted
from service.state.fold import State
from service.state.learner import Learner


class _Split(NamedTuple):
    """The learners of one revision that have a share of the traffic."""

    revision: int
    learners: Mapping[str, Learner]
    names: list[str]
    shares: Array
    chances: dict[str, float]


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
                raise no_policy(state, request.policy)
            return learner, 1.0
        split = self._split(state)
        sticky = request.key if request.unit is None else request.unit
        if sticky is None:
            name = split.names[rules.choose(split.shares, self._rng.random())]
        else:
            name = winner(state.name, sticky, split.chances)
        return state.learners[name], split.chances[name]

    def _split(self, state: State) -> _Split:
        """Computed anew when the experiment has changed."""
        split = self._splits.get(state.name)
        learners = state.learners
        if split is None or split.revision != state.revision or split.learners is not learners:
            chances = chances_of(learners)
            shares = np.array(list(chances.values()))
            split = _Split(state.revision, learners, list(chances), shares, chances)
            self._splits[state.name] = split
        return split


def chances_of(learners: Mapping[str, Learner]) -> dict[str, float]:
    """Normalised shares, in the order of the names, of the policies that have one."""
    shares = {name: learner.settings.share for name, learner in sorted(learners.items())}
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items() if share}


def no_policy(state: State, name: str, path: str = "policy") -> NotFound:
    """The error for a policy that an experiment does not have, or that decides nothing."""
    if not state.deleted and name in state.definition.policies:
        return NotFound(f"policy {quoted(name)} is a shadow, which decides nothing", path=path)
    return not_found("policy", name, sorted(state.learners), path)


def winner(experiment: str, sticky: str, chances: Mapping[str, float]) -> str:
    """The policy of a unit, by weighted rendezvous hashing (Schindelhauer, Schomaker 2005): the
    least -ln(u) / share wins, u a hash of unit and policy.

    Each policy wins its share of the units. If one share grows relative to the others, units move
    to its policy alone; a new policy takes its share, and no unit moves between the others. If
    several change at once, units move only to policies that grew more than their own, and in all
    more than the least possible number.
    """
    if len(chances) == 1:
        return next(iter(chances))
    key, best, least = experiment.encode(), "", np.inf
    for name, chance in chances.items():
        digest = hashlib.blake2b(f"{name}\0{sticky}".encode(), digest_size=8, key=key).digest()
        time = -log((int.from_bytes(digest, "big") + 0.5) / 2**64) / chance
        if time < least:
            best, least = name, time
    return best
