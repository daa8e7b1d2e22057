"""How large usual numbers are, measured on the first rewards: standardisation and bounds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from service.features.declaration import CLIP, Numbers
from service.features.schema import Array, Schema

Index = npt.NDArray[np.intp]

NORMAL = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""

LIMIT = 3.0
"""Deviations at which a number of the context is clipped. Callers choose these numbers. One reward
of a number at ten deviations costs a head of 3,000 rewards 0.14 of its accuracy, one at three
deviations 0.01; data sets of the benchmark are learned as well with either."""

ENOUGH = 128
"""Default of the rows from which on the usual range of a number with a declared scale is known."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """x becomes (x - center) / spread, clipped to [low, high], in each of `schema.width` columns.

    A number without a declared scale is standardised: the center is its median, the spread its
    median absolute deviation over the values that differ from the median. A few hostile values move
    neither, whatever their size, and a sparse column that is mostly 0 has the spread of its other
    values. A number of the context with a declared scale keeps its unit and is clipped to LIMIT
    deviations around its median, unless the definition bounds it.

    A column that was added while the policy learned is 0 until it is measured: its spread is
    infinite until then. So is one that was not known yet, NaN, in a row from before.

    standardised   columns without a declared scale
    bounded        columns that keep their unit and get bounds
    split          columns of the context, which come first
    """

    center: Array
    spread: Array
    low: Array
    high: Array
    standardised: Index
    bounded: Index
    split: int

    @staticmethod
    def of(schema: Schema) -> "Scaling | None":
        """Return the scaling before it is measured; None where there is nothing to measure."""
        high = np.full(schema.width, np.inf)
        standardised, bounded = list[int](), list[int]()
        for feature, columns in _numbers(schema):
            context = columns.start < schema.context.width
            if not feature.declared:
                high[columns] = feature.clip or (LIMIT if context else CLIP)
                standardised += range(columns.start, columns.stop)
            elif context and not feature.has_bounds:
                high[columns] = CLIP  # as it is encoded
                bounded += range(columns.start, columns.stop)
        if not standardised and not bounded:
            return None
        return Scaling(
            np.zeros(schema.width),
            np.ones(schema.width),
            -high,
            high,
            np.array(standardised, np.intp),
            np.array(bounded, np.intp),
            schema.context.width,
        )

    @property
    def columns(self) -> list[int]:
        """Columns of which something is measured, in the order of `values`."""
        return [*self.standardised.tolist(), *self.bounded.tolist()]

    @property
    def unmeasured(self) -> Array:  # (2, measured columns)
        """Return `values` of columns that were added late and are not measured yet."""
        low = np.where(np.arange(len(self.columns)) < len(self.standardised), 0.0, -np.inf)
        return np.stack([low, np.full(len(low), np.inf)])

    def concerns(self, columns: Index) -> bool:
        """Whether anything is measured of these columns."""
        return bool(np.isin(columns, self.columns).any())

    def measured(self, x: Array, enough: int = ENOUGH) -> "Scaling":  # (n, schema.width), n > 0
        """Measure centers, spreads and bounds on settled rows."""
        found = self
        if len(self.standardised):
            center, spread = self.center.copy(), self.spread.copy()
            center[self.standardised], spread[self.standardised] = _usual(x[:, self.standardised])
            found = replace(found, center=center, spread=spread)
        if len(self.bounded) and len(x) >= enough:
            low, high = self.low.copy(), self.high.copy()
            middle, deviation = _usual(x[:, self.bounded])
            low[self.bounded] = middle - LIMIT * deviation
            high[self.bounded] = middle + LIMIT * deviation
            found = replace(found, low=low, high=high)
        return found

    def completed(self, x: Array) -> "Scaling":  # (n, schema.width), n > 0
        """Measure the columns that are not measured yet, and these alone."""
        new, old = self.measured(x, 1).values, self.values
        return self.with_values(np.where(np.isfinite(old).all(axis=0), old, new))

    @property
    def values(self) -> Array:  # (2, measured columns)
        """Return all that was measured, for snapshots: centers and spreads of the standardised
        columns, then lower and upper ends of the bounded ones. `with_values` is the inverse."""
        first = self.center[self.standardised], self.low[self.bounded]
        second = self.spread[self.standardised], self.high[self.bounded]
        return np.stack([np.concatenate(first), np.concatenate(second)])

    def with_values(self, values: Array) -> "Scaling":
        """Return the scaling with these values. Raises ValueError where they are not those of a
        scaling of these columns."""
        count = len(self.standardised)
        if values.shape != (2, count + len(self.bounded)) or np.isnan(values).any():
            raise ValueError("the scaling does not fit the columns")
        if (values[1, :count] <= 0).any() or (values[0, count:] >= values[1, count:]).any():
            raise ValueError("the scaling has a spread or a range of 0 or less")
        center, spread = self.center.copy(), self.spread.copy()
        low, high = self.low.copy(), self.high.copy()
        center[self.standardised], spread[self.standardised] = values[:, :count]
        low[self.bounded], high[self.bounded] = values[:, count:]
        return replace(self, center=center, spread=spread, low=low, high=high)

    def __call__(self, x: Array) -> Array:  # (..., schema.width) -> the same
        found = self._scaled(x, slice(None))
        found[np.isnan(found)] = 0.0
        return found

    def context(self, x: Array) -> Array:  # (..., context.width) -> the same
        return self._scaled(x, slice(None, self.split))

    def arms(self, x: Array) -> Array:  # (n, arm.width) -> the same
        return self._scaled(x, slice(self.split, None))

    def _scaled(self, x: Array, columns: slice) -> Array:
        found: Array = x - self.center[columns]
        with np.errstate(over="ignore"):  # infinity is clipped as any other far value
            found /= self.spread[columns]
        np.maximum(found, self.low[columns], out=found)
        return np.minimum(found, self.high[columns], out=found)


def _usual(values: Array) -> tuple[Array, Array]:  # (n, k) -> (k,), (k,)
    """Return median and deviation of each column; a column of one value has the deviation 1. NaN:
    not known."""
    center, deviation = np.zeros(values.shape[1]), np.ones(values.shape[1])
    for column, own in enumerate(values.T):
        known = own[~np.isnan(own)]
        if known.size:
            center[column] = np.median(known)
            distances = np.abs(known - center[column])
            if (differ := distances[distances > 0]).size:
                deviation[column] = NORMAL * np.median(differ)
    return center, deviation


def _numbers(schema: Schema) -> Iterator[tuple[Numbers, slice]]:
    """Each numeric feature or vector, and its base columns."""
    for side, first in ((schema.context, 0), (schema.arm, schema.context.width)):
        for name, columns in side.columns.items():
            if isinstance(feature := side.features[name], Numbers):
                yield feature, slice(first + columns.start, first + columns.stop)
