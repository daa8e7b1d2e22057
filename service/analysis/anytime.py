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

from collections.abc import Sequence

import numpy as np

from service.analysis.growing import Growing
from service.analysis.intervals import Interval
from service.analysis.sequences import Array, ConfidenceSequence, IntegerArray, Terms

WEIGHT_CAP = 5.0
"""Cap of a weight. A smaller one makes intervals narrow where a policy mostly does what the log
did, a larger one where it does not; they were 1.8 to 3.3 times as wide as fixed ones of the same
data."""


def known(p: Array, b: Array, q: Array) -> Array:  # (..., K) -> (...)
    """Return the first part of the estimate: sum_a p(a) min(q(a), CAP / w)."""
    return np.asarray(np.minimum(p * q, WEIGHT_CAP * b).sum(axis=-1))


def surprise(w: Array | float, r: Array | float, q: Array | float) -> Array:
    """Return the second part: w (r - min(q, CAP / w)), of the arm shown."""
    return np.asarray(w * r - np.minimum(w * q, WEIGHT_CAP))


class AnytimeEstimate:
    """The value of one policy, as decisions are added in their order.

    rows   weight of the shown arm, and its guess; of r, and `_not` of 1 - r, the first part of the
           estimate (known) and sum_a b(a) q(a) (ran); low, high: limits of a reward. Guesses and
           rewards count as shares of these
    """

    def __init__(self) -> None:
        self.rows = Growing(
            weight="d", guess="d", known="d", known_not="d", ran="d", ran_not="d", low="d", high="d"
        )

    def add(
        self,
        p: Array,  # (K,) of each arm under the policy
        b: Array,  # (K,) the same of the log
        guess: Array,  # (K,)
        shown: int,
        limits: tuple[float, float],  # of a reward
    ) -> None:
        low, high = limits
        q = (guess - low) / (high - low)
        sides = known(p, b, q), known(p, b, 1 - q), b @ q, b @ (1 - q)
        self.rows.append(p[shown] / b[shown], q[shown], *map(float, sides), low, high)

    def terms(self, reward: Array) -> tuple[list[Terms], list[Terms]]:
        """Return those of the value, and of its difference to what the log earned: each of r and of
        1 - r. reward: (n,) of each decision."""
        rows = self.rows.columns
        r = (reward - rows["low"]) / (rows["high"] - rows["low"])
        value, over = list[Terms](), list[Terms]()
        for side, r_, q in (("", r, rows["guess"]), ("_not", 1 - r, 1 - rows["guess"])):
            own = Terms(rows[f"known{side}"], surprise(rows["weight"], r_, q), WEIGHT_CAP)
            ran = rows[f"ran{side}"]
            value.append(own)
            over.append(own - Terms(ran, r_ - ran, 1.0))
        return value, over

    def intervals(
        self, reward: Array, unit: IntegerArray, confidence: float
    ) -> tuple[Interval, Interval]:
        """Return those of the value, and of its difference to what the log earned."""
        low, high = float(self.rows["low"][-1]), float(self.rows["high"][-1])
        value, over = (bounds(two, unit, 1 - confidence) for two in self.terms(reward))
        span = high - low
        return (
            Interval(low + span * max(value[0], 0.0), low + span * min(1 + value[1], 1.0)),
            Interval(span * max(over[0], -1.0), span * min(over[1], 1.0)),
        )


def bounds(two: Sequence[Terms], unit: IntegerArray, alpha: float) -> tuple[float, float]:
    """Return the lower end by the terms of r, and by those of 1 - r the lower end, negated."""
    low, high = (ConfidenceSequence(each, unit, alpha).estimate().interval[0] for each in two)
    return low, -high
