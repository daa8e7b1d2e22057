"""Settled arms, from which heads learn."""

from typing import NamedTuple

import msgspec


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shown arm and its reward.

    x        base features, context then arm, encoded
    inline   outside the catalogue: it gets no head of its own
    """

    arm: str
    reward: float
    x: list[float]
    inline: bool = False


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
