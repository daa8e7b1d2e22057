"""Which decisions of a log are whose in a rollout, and by which chances."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from service.analysis.definitions import Definitions
from service.analysis.sequences import Array, IntegerArray
from service.state.rollout import Rollout


class Deciders(Protocol):
    """What decided decisions, (n,) each, as `history.Decisions` has it."""

    @property
    def policy(self) -> IntegerArray: ...
    @property
    def version(self) -> IntegerArray: ...
    @property
    def position(self) -> IntegerArray: ...
    @property
    def chance(self) -> Array: ...


class RolloutSides(NamedTuple):
    """The decisions since a rollout began that chance gave to one side or the other.

    rows                          (n,) their places
    own, baseline                 (n,) whether the challenger, or the baseline, decided
    own_chance, baseline_chance   (n,) with which each was drawn
    """

    rows: IntegerArray
    own: npt.NDArray[np.bool_]
    baseline: npt.NDArray[np.bool_]
    own_chance: Array
    baseline_chance: Array


def sides_of(
    rollout: Rollout, decided: Deciders, names: Mapping[str, int], definitions: Definitions
) -> RolloutSides:
    """Tell the two sides of a rollout apart. Versions divide their policy, so that chance takes
    part in every decision of it, also where the request names it.

    names   of policies, each with its place
    """
    policy, version = rollout.policy, rollout.version
    later = decided.position >= rollout.position
    own_place, place = names.get(policy, -1), names.get(rollout.baseline, -1)
    if version is None:
        rows = np.flatnonzero(later & (decided.chance < 1))
        position, own = decided.position[rows], decided.policy[rows] == own_place
        baseline = decided.policy[rows] == place
        chances = (definitions.shares({name}, position) for name in (policy, rollout.baseline))
        return RolloutSides(rows, own, baseline, *chances)
    rows = np.flatnonzero(later & (decided.policy == own_place))
    own = decided.version[rows] == version
    chance = definitions.version_shares(policy, decided.position[rows])
    return RolloutSides(rows, own, ~own, chance, 1 - chance)
