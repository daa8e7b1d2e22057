"""Confidence sequences: intervals that hold at all times at once, so that people may watch them.

A row is a decision whose policy was drawn. A policy was drawn with chance c, and where it was, it
earned r. With m, the mean of its earlier rewards, its term of a row is

    z = m + e,    e = 1{drawn} (r - m) / c

whatever policy was drawn. m has no part in its own row, so the expectation of z given the past is
what the policy earns in expectation, and the mean of z over n rows estimates the mean of that, even
while policies learn and shares change (augmented inverse propensity weighting: Robins, Rotnitzky,
Zhao 1994). Two policies are compared by the difference of their terms.

The sum of z is off by at most u(V), at all n at once, with probability 1 - alpha, where V is the
sum of e^2 (`service.bandits.boundary`).

A unit (a visitor) is drawn once for all of its rows, which are one observation: V is the sum over
units of (sum of e)^2. With one row a unit, that is the theorem. Beyond, a path that repeats itself
crosses a boundary less often than one of independent steps with the same variance (Slepian 1962),
which holds in the limit of many units.

Of a unit the first MOST_ROWS rows count. Whether a row does is known before its reward, by the rows
before it, so the above holds of the rows that count.
"""

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri

from service.bandits.boundary import log_evidence, radius

Array = npt.NDArray[np.float64]
IntegerArray = npt.NDArray[np.int64]

MOST_ROWS = 10
"""Rows of a unit that count. If all did, a crawler with 300 decisions beside 500 visitors with one
each would be 3/8 of every mean, and leave 3 effective units of each half of the traffic. Where the
rates of visitors vary so that two decisions of one have a correlation of 1/8, the first ten hold 59
percent of what any number of them would tell of a policy."""


def before(values: Array) -> Array:
    """Return the sum of the earlier values, (n,)."""
    return np.concatenate([[0.0], np.cumsum(values)[:-1]])


@dataclass(frozen=True)
class Terms:
    """The terms z = m + e of a policy, or the difference of those of two.

    m, e    (n,)
    scale   the largest |e| there can be
    """

    m: Array
    e: Array
    scale: float

    def __sub__(self, other: "Terms") -> "Terms":
        return Terms(self.m - other.m, self.e - other.e, max(self.scale, other.scale))

    def __rmul__(self, factor: float) -> "Terms":
        return Terms(factor * self.m, factor * self.e, abs(factor) * self.scale)

    @property
    def z(self) -> Array:
        return self.m + self.e


def terms(
    drawn: npt.NDArray[np.bool_],  # (n,) whether the policy decided
    chance: Array,  # (n,) with which it was drawn, where it was
    reward: Array,  # (n,)
    first: float,  # m before the first reward
    span: float,  # largest less smallest reward
) -> Terms:
    """Return the terms of a policy, or of several taken as one."""
    count = before(drawn.astype(float))
    m = np.where(count > 0, before(np.where(drawn, reward, 0.0)) / np.maximum(count, 1), first)
    e = np.where(drawn, (reward - m) / chance, 0.0)
    least = float(chance[drawn].min(initial=1.0))
    return Terms(m, e, span / least)


def by_unit(unit: IntegerArray) -> tuple[IntegerArray, IntegerArray]:
    """Return the rows unit by unit, each unit's in their order, and for each of these places that
    of its unit's first row: both (n,)."""
    order = np.argsort(unit, kind="stable")
    starts = np.diff(unit[order], prepend=-1) != 0
    return order, np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))


def counted(unit: IntegerArray) -> npt.NDArray[np.bool_]:
    """Return whether each row counts, (n,): it is one of the first MOST_ROWS of its unit."""
    order, first = by_unit(unit)
    counts = np.empty(len(unit), dtype=bool)
    counts[order] = np.arange(len(unit)) - first < MOST_ROWS
    return counts


def earlier_of_unit(values: Array, unit: IntegerArray) -> Array:
    """Return the sum of the values of the earlier rows of the same unit, (n,)."""
    order, first = by_unit(unit)
    sums, found = before(values[order]), np.empty_like(values)
    found[order] = sums - sums[first]
    return found


def sum_of_squares(e: Array, unit: IntegerArray) -> Array:
    """Return V after each row, (n,): the sum over units of (sum of e)^2."""
    return np.cumsum(e * (2 * earlier_of_unit(e, unit) + e))


@dataclass(frozen=True)
class Estimate:
    """A mean of terms with its intervals.

    interval   holds at all times at once
    fixed      holds for one look at a number of rows that was chosen in advance
    """

    value: float
    interval: tuple[float, float]
    fixed: tuple[float, float]

    def within(self, low: float, high: float) -> "Estimate":
        """Cut the estimate and its intervals to what the mean can be."""
        cut = [
            (min(max(ends[0], low), high), max(min(ends[1], high), low))
            for ends in (self.interval, self.fixed)
        ]
        return Estimate(min(max(self.value, low), high), *cut)


class ConfidenceSequence:
    """Terms with the boundary of their sum, row by row."""

    def __init__(self, each: Terms, unit: IntegerArray, alpha: float) -> None:
        self.scale, self._alpha = each.scale, alpha
        self.sums = np.cumsum(each.z)
        self.v = np.maximum(sum_of_squares(each.e, unit), 0.0)

    def at(self, rows: IntegerArray) -> tuple[Array, Array]:
        """Return the mean after each of the rows, and half of the width of its interval."""
        count = rows + 1
        return self.sums[rows] / count, radius(self.v[rows], self.scale, self._alpha) / count

    def estimate(self) -> Estimate:
        """Estimate the mean of all rows."""
        count = len(self.sums)
        [mean], [half] = self.at(np.array([count - 1]))
        once = float(ndtri(1 - self._alpha / 2) * np.sqrt(self.v[-1])) / count
        value = float(mean)
        return Estimate(
            value, (value - float(half), value + float(half)), (value - once, value + once)
        )

    def safe_since(self) -> int | None:
        """Return the row from which on the interval has left out 0 up to the end; None: it holds
        0."""
        evidence = log_evidence(np.abs(self.sums), self.v, self.scale)
        holds = np.flatnonzero(evidence <= log(2 / self._alpha))
        if not len(holds):
            return 0
        return None if holds[-1] == len(self.sums) - 1 else int(holds[-1]) + 1


def ratio_interval(
    own: Terms, control: Terms, unit: IntegerArray, alpha: float
) -> tuple[float, float] | None:
    """Return bounds of the ratio of two means that hold at all times at once: the ratios t for
    which the interval of own - t control holds 0 (Fieller 1954).

    None: the control may earn nothing, so that no ratio can be told.
    """
    tops = float(own.z.sum()), float(control.z.sum())
    sums = np.stack([np.bincount(unit, each.e) for each in (own, control)])
    (mine, both), (_, theirs) = (sums @ sums.T).tolist()
    scales = own.scale, control.scale

    def short(t: float, sign: float) -> float:
        """Below 0 where the ratio t is possible."""
        v = max(mine - 2 * t * both + t * t * theirs, 0.0)
        scale = max(scales[0], abs(t) * scales[1])
        s = max(sign * (tops[0] - t * tops[1]), 0.0)
        return float(log_evidence(np.array(s), np.array(v), scale)) - log(2 / alpha)

    if tops[1] <= 0 or log_evidence(np.array(tops[1]), np.array(theirs), scales[1]) <= log(
        2 / alpha
    ):
        return None
    middle, ends = tops[0] / tops[1], list[float]()
    for sign in (1.0, -1.0):
        step = 0.01 * max(abs(middle), 0.01)
        while short(middle - sign * step, sign) < 0:
            step *= 2
        ends.append(brentq(short, middle, middle - sign * step, args=(sign,)))
    return ends[0], ends[1]


def chances_of_best(each: list[Terms], unit: IntegerArray, draws: int = 10_000) -> list[float]:
    """Return the probability of each policy to earn most, by a normal approximation of the means.
    The draws are the same every time."""
    _, number = np.unique(unit, return_inverse=True)
    sums = np.column_stack([np.bincount(number, one.e) for one in each])
    count = len(unit)
    covariance = sums.T @ sums / count**2
    means = np.array([one.z.mean() for one in each])
    values, vectors = np.linalg.eigh(covariance)
    normal = np.random.default_rng(0).standard_normal((draws, len(each)))
    drawn = means + normal * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    best = np.bincount(drawn.argmax(axis=1), minlength=len(each))
    return [float(found) / draws for found in best]
