"""Settled arms, from which heads learn."""

from typing import NamedTuple

import msgspec


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shown arm and its reward.

    x        base features, context then arm, encoded
    inline   outside the catalogue: it gets no head of its own
    weight   for how much of a settlement it counts (`service.bandits.influence`)
    """

    arm: str
    reward: float
    x: list[float]
    inline: bool = False
    weight: float = 1.0


def settle(arm: str, reward: float, x: list[float], inline: bool, weight: float) -> Settled:
    """The log omits the default weight of 1, which most settlements have."""
    if weight == 1.0:
        return Settled(arm, reward, x, inline)
    return Settled(arm, reward, x, inline, weight)


class SettledReward(NamedTuple):
    """A settled arm; the other fields as in `Corrected`. was: None at its first reward."""

    settled: Settled
    was: float | None = None
    since: int | None = None
    withdrawn: bool = False

    @property
    def learned(self) -> float | None:
        """The reward that holds from here on; None after a withdrawal."""
        return None if self.withdrawn else self.settled.reward
