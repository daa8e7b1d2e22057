"""Whether the log holds what was drawn: shown arms against their propensities, visitors against the
shares of policies.

An arm that was drawn with propensity p adds 1{shown} - p to a sum of expectation 0. It is off by at
most u(V) at all times at once, with V = sum of p (1 - p), unless rows are missing, or doubled, for
some arms more than for others. So of visitors and policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.analysis.sequences import Array, IntegerArray
from service.bandits.boundary import radius
from service.state.decisions import Decision

FALSE_ALARM_CHANCE = 0.001
"""Chance that an experiment ever gives a false alarm."""

MOST_COUNTED_ARMS = 10_000
"""Most arms that are counted."""


@dataclass(frozen=True)
class Mismatch:
    """Name that was drawn too often or too rarely. what: `arm` or `policy`."""

    what: str
    name: str
    observed: int
    expected: float


class Counts:
    """Counts of names: how often each was drawn and should have been, and the variance."""

    def __init__(self, names: Sequence[str] = (), sums: Array | None = None) -> None:
        self.names = {name: place for place, name in enumerate(names)}
        self.sums = np.zeros((3, max(len(names), 16))) if sums is None else sums.copy()

    def add(self, places: IntegerArray, drawn: int, chances: Array) -> None:
        """Count a draw. places: of the names that could be drawn; drawn: of the one that was."""
        self.sums[0, drawn] += 1
        self.sums[1, places] += chances
        self.sums[2, places] += chances * (1 - chances)

    def places(self, names: Sequence[str]) -> IntegerArray:
        for name in names:
            self.names.setdefault(name, len(self.names))
        if len(self.names) > self.sums.shape[1]:
            self.sums = np.pad(self.sums, ((0, 0), (0, len(self.names))))
        return np.array([self.names[name] for name in names])

    def mismatch(self, what: str, alpha: float) -> Mismatch | None:
        """Return the name that is farthest beyond its bound; None where all are within."""
        observed, expected, v = self.sums[:, : len(self.names)]
        off = np.abs(observed - expected)
        if not (off > 0).any():
            return None
        beyond = off / radius(v, 1.0, alpha / len(self.names))
        worst = int(beyond.argmax())
        if beyond[worst] <= 1:
            return None
        name = list(self.names)[worst]
        return Mismatch(what, name, int(observed[worst]), float(expected[worst]))


class ShownArms:
    """The first slots of decisions against their propensities."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._last: tuple[list[str], IntegerArray] = [], np.array([], dtype=np.int64)

    def add(self, decision: Decision) -> None:
        arms, places = self._last
        if arms != decision.arms:
            known = self.counts.names
            if len(known) + sum(arm not in known for arm in decision.arms) > MOST_COUNTED_ARMS:
                return
            places = self.counts.places(decision.arms)
            self._last = decision.arms, places
        drawn = self.counts.names[decision.shown[0].arm]
        self.counts.add(places, drawn, np.array(decision.probabilities))
