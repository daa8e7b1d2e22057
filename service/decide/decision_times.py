"""Measured times of decisions: a long decision runs in another thread."""

from math import inf
from weakref import WeakKeyDictionary

from service.bandits.version import Version

WEIGHT = 0.25
"""Weight of the latest measurement in the moving average."""

Size = tuple[int, int, int]
"""Binary digits of the numbers of arms, of slots, and of matrices to factorise first."""


class DecisionTime:
    """Moving average over decisions of one version of a policy and about one size.

    seconds   of processor time; infinite before the first measurement
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = inf

    def observe(self, seconds: float) -> None:
        if self.seconds == inf:
            self.seconds = seconds
        else:
            self.seconds += WEIGHT * (seconds - self.seconds)


class DecisionTimes:
    """One `DecisionTime` for each version, and power of two of arms, slots and stale matrices."""

    def __init__(self) -> None:
        self._known = WeakKeyDictionary[Version, dict[Size, DecisionTime]]()

    def of(self, version: Version, arms: int, slots: int) -> DecisionTime:
        head = version.head
        stale = 0 if head is None else head.stale
        size = arms.bit_length(), slots.bit_length(), stale.bit_length()
        try:
            return self._known[version][size]
        except KeyError:
            return self._known.setdefault(version, {}).setdefault(size, DecisionTime())
