"""What a policy sees of a base vector: chosen columns, crosses, a constant."""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from service.definition.experiment import (
    CROSS,
    INTERCEPT,
    Categorical,
    Feature,
    Hashed,
    Vector,
)
from service.definition.features import Array, Schema, SideEncoder, largest_column, width

Index = npt.NDArray[np.intp]

LARGEST_PRODUCT = 1e60
"""Of the numbers of a cross, on the side of the context and on that of the arm: the square of a
row's square is a float, and no sum of them overflows."""

ONE, ONE_ROW = np.ones(1), np.ones((1, 1))


def _products(
    values: Array, factors: Sequence[Index], width: int, *, bounded: bool = True
) -> Array:  # (..., width)
    """A column each: the product of the columns of `values` that are its factors. bounded: it
    cannot be beyond LARGEST_PRODUCT; else it is clipped to that."""
    if not factors:
        return np.ones((*values.shape[:-1], width))
    found: Array = values.take(factors[0], axis=-1)
    for factor in factors[1:]:
        found *= values.take(factor, axis=-1)
        if not bounded:
            np.clip(found, -LARGEST_PRODUCT, LARGEST_PRODUCT, out=found)
    return found


class View:
    """What one policy sees of a base vector: chosen columns, crosses, a constant."""

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        self._schema = schema
        self.names = tuple(names)
        self._terms = [[part for part in name.split(CROSS) if part != INTERCEPT] for name in names]
        self._elementwise = [self._is_elementwise(parts) for parts in self._terms]
        widths = [
            self._width(parts, elementwise)
            for parts, elementwise in zip(self._terms, self._elementwise, strict=True)
        ]
        self._stops = np.cumsum([0, *widths])
        self.width = int(self._stops[-1])
        self.context_columns = self._columns_of(schema.context)
        self.arm_columns = self._columns_of(schema.arm)
        """Columns of the context's, and of an arm's, features that this view depends on."""
        self.unbounded = [
            name
            for name, parts in zip(self.names, self._terms, strict=True)
            if prod(largest_column(self._feature(part)) for part in parts) > LARGEST_PRODUCT
        ]
        """Crosses whose products may be too large to be made as they are. None is defined any more;
        an older log may have some."""

    def _columns_of(self, side: SideEncoder) -> npt.NDArray[np.intp]:
        names = {part for parts in self._terms for part in parts if part in side.features}
        columns = [np.arange(side.width)[side.columns[name]] for name in sorted(names)]
        return np.concatenate(columns or [np.arange(0)])

    @cached_property  # the width is looked at first, and may be too large for these
    def _factors(self) -> tuple[list[Index], list[Index]]:
        """Every column is a product of columns of [1 | context] and of [1 | arm]: which, by factor
        (width,)."""
        most = max(map(len, self._terms), default=0)
        context, arm = np.zeros((2, most, self.width), np.intp)  # 0: the column of ones
        for parts, columns, elementwise in zip(
            self._terms, self.groups, self._elementwise, strict=True
        ):
            sizes = [width(self._feature(part)) for part in parts]
            steps = [np.arange(sizes[0])] * len(parts) if elementwise else np.indices(sizes)
            used = {True: 0, False: 0}
            for part, step in zip(parts, steps, strict=True):
                in_context = part in self._schema.context.columns
                side = self._schema.context if in_context else self._schema.arm
                own = context if in_context else arm
                own[used[in_context], columns] = 1 + side.columns[part].start + step.ravel()
                used[in_context] += 1
        return [row for row in context if row.any()], [row for row in arm if row.any()]

    @cached_property
    def sides(self) -> tuple[Index, Index, Index]:
        """Columns that are the arm's alone, the context's alone (or the constant), and of both."""
        used = np.zeros((2, self.width), bool)
        for side, rows in enumerate(self._factors):
            for row in rows:
                used[side] |= row > 0
        context, arm = used
        return np.flatnonzero(arm & ~context), np.flatnonzero(~arm), np.flatnonzero(arm & context)

    @property
    def arm_factors(self) -> Index:  # (f, width)
        """Columns of [1 | arm] whose product is each column's part of the arm's."""
        return np.array(self._factors[1], np.intp).reshape(-1, self.width)

    def context_part(self, context: Array) -> Array:  # (..., context.width) -> (..., width)
        """What of each column is the context's: `design` is its product with `arm_part`."""
        ones = ONE if context.ndim == 1 else np.ones((*context.shape[:-1], 1))
        values = np.concatenate((ones, context), axis=-1)
        return _products(values, self._factors[0], self.width, bounded=not self.unbounded)

    def arm_part(self, arms: Array) -> Array:  # (n, arm.width) -> (n, width)
        """What of each column is the arm's, one row an arm."""
        values = np.hstack([np.ones((len(arms), 1)), arms])
        return _products(values, self._factors[1], self.width, bounded=not self.unbounded)

    def column_name(self, column: int) -> str:
        """What a column of the view says, for people: `persona=dog x category=toys`."""
        context, arm = self._factors
        split = self._schema.context.width
        found = [int(each[column]) - 1 for each in context if each[column]]
        found += [split + int(each[column]) - 1 for each in arm if each[column]]
        return CROSS.join(map(self._schema.column_name, found)) or INTERCEPT

    @property
    def expected_square(self) -> float:
        """Of a row, where numbers are scaled to unit variance: 1 a column, and 1 for all the
        columns of a category."""
        one_hot = (Categorical, Hashed)
        total = 0
        for parts, elementwise in zip(self._terms, self._elementwise, strict=True):
            found = [self._feature(part) for part in parts]
            sizes = [1 if isinstance(feature, one_hot) else width(feature) for feature in found]
            total += sizes[0] if elementwise else int(np.prod(sizes, initial=1))
        return float(total)

    @property
    def groups(self) -> list[slice]:
        """Columns of each name, in order."""
        stops = self._stops.tolist()
        return [slice(start, stop) for start, stop in pairwise(stops)]

    def _feature(self, name: str) -> Feature:
        features = self._schema.features
        return features.context[name] if name in features.context else features.arm[name]

    def _is_elementwise(self, parts: Sequence[str]) -> bool:
        found = [self._feature(part) for part in parts]
        sizes = {feature.size for feature in found if isinstance(feature, Vector)}
        return len(parts) > 1 and len(sizes) == 1 and all(isinstance(f, Vector) for f in found)

    def _width(self, parts: Sequence[str], elementwise: bool) -> int:
        widths = [width(self._feature(part)) for part in parts]
        return widths[0] if elementwise else int(np.prod(widths, initial=1, dtype=int))

    def _columns(self, name: str, context: Array, arms: Array) -> Array:
        side = self._schema.context
        if name in side.columns:
            return context[:, side.columns[name]]
        return arms[:, self._schema.arm.columns[name]]

    def design(
        self,
        context: Array,  # (n or 1, context.width)
        arms: Array,  # (n, arm.width)
    ) -> Array:  # (n, width)
        """Rows of what the policy sees, one an arm; a single context serves all arms."""
        if self.unbounded:
            return self.context_part(context) * self.arm_part(arms)
        rows = np.empty((len(arms), self.width))
        for index, parts in enumerate(self._terms):
            block = rows[:, self._stops[index] : self._stops[index + 1]]
            if not parts:
                block[:] = 1.0
                continue
            value = self._columns(parts[0], context, arms)
            for part in parts[1:]:
                other = self._columns(part, context, arms)
                if self._elementwise[index]:
                    value = value * other
                else:
                    outer = value[:, :, None] * other[:, None, :]
                    value = outer.reshape(len(outer), -1)
            block[:] = value
        return rows

    def rows(self, x: Array) -> Array:  # (n, schema.width) -> (n, width)
        """The same from base vectors, as events hold them."""
        if len(x) == 1 and self._pairs is not None:  # one settlement: to the last bit
            return _products(np.concatenate((ONE_ROW, x), axis=1), self._pairs, self.width)
        split = self._schema.context.width
        return self.design(x[:, :split], x[:, split:])

    @cached_property
    def _pairs(self) -> list[Index] | None:
        """As `_factors`, of columns of [1 | context | arm]; None where one is a product of more
        than two, which may not be taken in any order."""
        if any(len(parts) > 2 for parts in self._terms):
            return None
        context, arm = self._factors
        shift = self._schema.context.width
        both = [*context, *(np.where(row > 0, row + shift, 0) for row in arm)]
        ordered = np.sort(np.array(both, np.intp).reshape(len(both), self.width), axis=0)[::-1]
        return [row for row in ordered if row.any()]
