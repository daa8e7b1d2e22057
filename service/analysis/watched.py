"""Intervals of doubly robust estimates that hold at all times at once, for those who watch them.

The estimate of a decision is sum_a p(a) q(a) + w (r - q), with w = p / b. Weights have no useful
bound, but rewards (here as shares of their range) are at least 0: with the guess of each arm cut to
CAP / w, the second part is at least -CAP. The sum of the first part is known before the arm is
drawn, so that the boundary of `service.analysis.sequences` bounds from below what the policy would
have earned, with V the sum of squares of the second part; the same of 1 - r bounds it from above
(Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro 2024, "Anytime-valid off-policy inference for
contextual bandits", section 2). The difference to what the log earned has r - sum_a b(a) q(a) taken
from the second part, and sum_a b(a) q(a) from the first.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.analysis.intervals import Interval
from service.analysis.sequences import Array, Index, Terms, Watched

CAP = 5.0
"""A smaller one makes intervals narrow where a policy mostly does what the log did, a larger one
where it does not; they were 1.8 to 3.3 times as wide as fixed ones of the same data."""


def known(p: Array, b: Array, q: Array) -> Array:  # (..., K) -> (...)
    """Return the first part of the estimate: sum_a p(a) min(q(a), CAP / w)."""
    return np.asarray(np.minimum(p * q, CAP * b).sum(axis=-1))


def surprise(w: Array | float, r: Array | float, q: Array | float) -> Array:
    """Return the second part: w (r - min(q, CAP / w)), of the arm shown."""
    return np.asarray(w * r - np.minimum(w * q, CAP))


def doubles() -> "array[float]":
    return array("d")


@dataclass
class _Side:
    """Of r, or of 1 - r. ran: sum_a b(a) q(a); rest: r less that."""

    known: "array[float]" = field(default_factory=doubles)
    surprise: "array[float]" = field(default_factory=doubles)
    ran: "array[float]" = field(default_factory=doubles)
    rest: "array[float]" = field(default_factory=doubles)

    def add(self, p: Array, b: Array, q: Array, shown: int, r: float) -> None:
        expected = float(b @ q)
        self.known.append(float(known(p, b, q)))
        self.surprise.append(float(surprise(p[shown] / b[shown], r, q[shown])))
        self.ran.append(expected)
        self.rest.append(r - expected)

    def terms(self) -> tuple[Terms, Terms]:
        value = Terms(np.array(self.known), np.array(self.surprise), CAP)
        return value, value - Terms(np.array(self.ran), np.array(self.rest), 1.0)


class WatchedValue:
    """The value of one policy, as decisions are added in their order."""

    def __init__(self) -> None:
        self._low, self._high = _Side(), _Side()
        self._limits = 0.0, 1.0

    def add(
        self,
        p: Array,  # (K,) of each arm under the policy
        b: Array,  # (K,) the same of the log
        guess: Array,  # (K,)
        shown: int,
        reward: float,
        limits: tuple[float, float],  # of a reward
    ) -> None:
        low, high = self._limits = limits
        q, r = (guess - low) / (high - low), (reward - low) / (high - low)
        self._low.add(p, b, q, shown, r)
        self._high.add(p, b, 1 - q, shown, 1 - r)

    def intervals(self, unit: Index, confidence: float) -> tuple[Interval, Interval]:
        """Return those of the value, and of its difference to what the log earned."""
        low, high = self._limits
        sides = self._low.terms(), self._high.terms()
        value, over = (bounds(two, unit, 1 - confidence) for two in zip(*sides, strict=True))
        span = high - low
        return (
            Interval(low + span * max(value[0], 0.0), low + span * min(1 + value[1], 1.0)),
            Interval(span * max(over[0], -1.0), span * min(over[1], 1.0)),
        )


def bounds(two: Sequence[Terms], unit: Index, alpha: float) -> tuple[float, float]:
    """Return the lower end by the terms of r, and by those of 1 - r the lower end, negated."""
    low, high = (Watched(each, unit, alpha).estimate().interval[0] for each in two)
    return low, -high
