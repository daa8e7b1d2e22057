"""The interval of an estimate sum(top) / sum(bottom) over rows that weigh very differently.

It is Student's t with as many degrees of freedom as there are effective rows, together with the
same after two effective rows of the least reward and two of the largest were added (Agresti & Coull
1998): a log without a click on the arms of the target has a variance of 0, and any resampling of it
the interval [0, 0].
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function
from scipy.special import stdtrit

Array = npt.NDArray[np.float64]

ADDED = 2
"""Effective rows of the least reward that are added, and as many of the largest."""


class Interval(NamedTuple):
    low: float
    high: float

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Describe an interval to pydantic: as JSON it is a list of both ends."""
        return no_info_after_validator_function(cls._make, handler(tuple[float, float]))

    def within(self, least: float, most: float) -> "Interval":
        """Clip to what can be: a mean of rewards lies in their range, an estimate of it by weights
        need not."""
        return Interval(*(min(max(end, least), most) for end in self))

    def hull(self, other: "Interval") -> "Interval":
        """Return the smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


def grouped(group: npt.NDArray[np.int64] | None, *columns: Array) -> list[Array]:
    """Sum columns over the rows of each group; None: each row is a group."""
    if group is None:
        return list(columns)
    _, number = np.unique(group, return_inverse=True)
    return [np.bincount(number, column).astype(float) for column in columns]


def standard_error(top: Array, bottom: Array) -> float:
    """Return the standard error of a ratio, by the delta method; of a mean where bottom is 1."""
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
    """Return what holds both intervals: the second alone would move away from a mean that a few
    large rewards make."""
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
