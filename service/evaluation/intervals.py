"""Intervals of an estimate sum(top) / sum(bottom) over rows that weigh very differently.

- `adjusted`: Student's t with as many degrees of freedom as there are effective rows, together with
  the same after two effective rows of the least reward and two of the largest were added (Agresti &
  Coull 1998). It is the one shown: a log without a click on the arms of the target has a variance
  of 0, and its bootstrap the interval [0, 0].
- `bootstrap`: bias-corrected and accelerated (Efron 1987). It follows the skew of the weights.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function
from scipy.special import ndtr, ndtri, stdtrit

Array = npt.NDArray[np.float64]

RESAMPLES = 1_000
BLOCKS = 4_096
"""Rows are put together in so many sums at most, by chance, before they are resampled: mean,
variance and skew of a mean are the same, and a million rows cost what these cost."""

CHUNK = 100
ADDED = 2
"""Effective rows of the least reward that are added, and as many of the largest."""


class Interval(NamedTuple):
    low: float
    high: float

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As JSON, a list of both ends."""
        return no_info_after_validator_function(cls._make, handler(tuple[float, float]))

    def within(self, least: float, most: float) -> "Interval":
        """The nearest of what can be: a mean of rewards lies in their range, an estimate of it by
        weights need not."""
        return Interval(*(min(max(end, least), most) for end in self))

    def hull(self, other: "Interval") -> "Interval":
        """The smallest that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


def grouped(group: npt.NDArray[np.int64] | None, *columns: Array) -> list[Array]:
    """Sums over the rows of each group; None: each row is a group."""
    if group is None:
        return list(columns)
    _, number = np.unique(group, return_inverse=True)
    return [np.bincount(number, column).astype(float) for column in columns]


def standard_error(top: Array, bottom: Array) -> float:
    """Of the ratio, by the delta method; of a mean where bottom is 1."""
    count, total = len(top), float(bottom.sum())
    if count < 2 or not total:
        return float("inf")
    residual = top - float(top.sum()) / total * bottom
    return float(np.sqrt(np.square(residual).sum() * count / (count - 1)) / abs(total))


def adjusted(
    top: Array,
    bottom: Array,
    weight: Array,  # (n,) of each row, or group of rows
    rewards: tuple[float, float],  # least and largest
    confidence: float,
) -> Interval:
    """Holds what both intervals hold: the second alone would move away from a mean that a few large
    rewards make."""
    total, squares = float(weight.sum()), float(np.square(weight).sum())
    if not squares or len(top) < 2:
        return Interval(-np.inf, np.inf)
    effective, one = total * total / squares, squares / total
    quantile = float(stdtrit(max(effective - 1, 1.0), 0.5 + confidence / 2))
    added = one * np.repeat(rewards, ADDED)
    more = np.concatenate([top, added]), np.concatenate([bottom, np.full(2 * ADDED, one)])
    ends = []
    for tops, bottoms in ((top, bottom), more):
        value = float(tops.sum() / bottoms.sum())
        half = quantile * standard_error(tops, bottoms)
        ends.append((value - half, value + half))
    return Interval(min(low for low, _ in ends), max(high for _, high in ends))


class Bootstrap:
    """The same resampled rows for every estimate, so that two of them can be compared.

    `scipy.stats.bootstrap` takes 0.51 s for an estimate of 100,000 rows, this 0.024 s; and it gives
    no interval where a resample has no weight."""

    def __init__(self, count: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> None:
        self._resamples = resamples
        self._blocks = min(count, BLOCKS)
        self._block = rng.permutation(count) % self._blocks
        self._rng_state = rng.bit_generator.state
        self._rng = rng

    def _sums(self, columns: Array) -> Array:  # (blocks, c) -> (resamples, c)
        self._rng.bit_generator.state = self._rng_state
        blocks, found = self._blocks, []
        for _ in range(-(-self._resamples // CHUNK)):
            drawn = self._rng.integers(0, blocks, (CHUNK, blocks))
            flat = drawn + np.arange(CHUNK)[:, None] * blocks
            counts = np.bincount(flat.ravel(), minlength=CHUNK * blocks).reshape(CHUNK, blocks)
            found.append(counts @ columns)
        return np.concatenate(found)

    def intervals(self, estimates: list[list[Array]], confidence: float) -> list[Interval]:
        """Of each (top, bottom)."""
        blocked = [
            np.bincount(self._block, column, self._blocks).astype(float)
            for pair in estimates
            for column in pair
        ]
        sums = self._sums(np.column_stack(blocked))
        return [
            _accelerated(blocked[2 * n], blocked[2 * n + 1], sums[:, 2 * n : 2 * n + 2], confidence)
            for n in range(len(estimates))
        ]


def _accelerated(top: Array, bottom: Array, sums: Array, confidence: float) -> Interval:
    """BCa. A resample of no weight tells nothing, and is left out."""
    whole = sums[:, 1] != 0
    found = sums[whole, 0] / sums[whole, 1]
    if not len(found) or not bottom.sum():
        return Interval(-np.inf, np.inf)
    value = float(top.sum() / bottom.sum())
    below = float((found < value).mean() + (found == value).mean() / 2)
    bias = float(ndtri(np.clip(below, 1 / len(found), 1 - 1 / len(found))))
    left = bottom.sum() - bottom
    without = (top.sum() - top)[left != 0] / left[left != 0]
    off = without.mean() - without
    spread = float(np.square(off).sum()) ** 1.5
    pace = float((off**3).sum()) / (6 * spread) if spread else 0.0
    z = bias + ndtri([0.5 - confidence / 2, 0.5 + confidence / 2])
    levels = ndtr(bias + z / np.maximum(1 - pace * z, 1e-9))
    low, high = np.quantile(found, levels)
    return Interval(float(low), float(high))
