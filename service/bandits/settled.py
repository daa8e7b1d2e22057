"""Settled arms: what heads learn from."""

from typing import NamedTuple

import msgspec


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One shown arm and what came of it.

    x        base features, context then arm, encoded
    inline   an arm outside the catalogue: no head of its own is made for it
    weight   for how much of a settlement it counts (`service.bandits.influence`)
    """

    arm: str
    reward: float
    x: list[float]
    inline: bool = False
    weight: float = 1.0


def settle(arm: str, reward: float, x: list[float], inline: bool, weight: float) -> Settled:
    """A settlement that the log writes without its weight where that is 1, as most are."""
    if weight == 1.0:
        return Settled(arm, reward, x, inline)
    return Settled(arm, reward, x, inline, weight)


class SettledReward(NamedTuple):
    """One settled arm; was, since, at_once, withdrawn: as in `Corrected`. was is None where this is
    the first word on it."""

    settled: Settled
    was: float | None = None
    since: int | None = None
    at_once: bool = True
    withdrawn: bool = False

    @property
    def learned(self) -> float | None:
        """The reward that holds from here; None: none does."""
        return None if self.withdrawn else self.settled.reward
