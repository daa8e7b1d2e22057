"""What a policy sees of a base vector: chosen columns, crosses, a constant."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from service.features.declaration import (
    CROSS,
    INTERCEPT,
    Categorical,
    Hashed,
    Vector,
    in_order,
    parts_of,
)
from service.features.scaling import ENOUGH, Scaling
from service.features.schema import Array, Schema, SideEncoder, largest_column, width

Index = npt.NDArray[np.intp]

LARGEST_PRODUCT = 1e60
"""Largest product of the numbers of a cross, on the side of the context and of the arm: the square
of a row's square is a float, and no sum of them overflows."""

ONE, ONE_ROW = np.ones(1), np.ones((1, 1))


class _Term:
    """A feature, a cross of features, or the constant: a product without factors.

    elementwise   the factors are vectors of one length, multiplied element by element
    """

    def __init__(self, name: str, schema: Schema) -> None:
        known = schema.features.context | schema.features.arm
        self.name = name
        self.parts = parts_of(name)
        self.features = [known[part] for part in self.parts]
        self.widths = [width(feature) for feature in self.features]
        self.elementwise = (
            len(self.parts) > 1
            and len(set(self.widths)) == 1
            and all(isinstance(feature, Vector) for feature in self.features)
        )
        self.width = self.widths[0] if self.elementwise else prod(self.widths)

    def steps(self) -> Sequence[Index]:
        """Return the column of each factor, by the column of the term."""
        if self.elementwise:
            return [np.arange(self.width)] * len(self.parts)
        return [step.ravel() for step in np.indices(self.widths)]

    def expected_square(self) -> int:
        sizes = [
            1 if isinstance(feature, Categorical | Hashed) else size
            for feature, size in zip(self.features, self.widths, strict=True)
        ]
        return sizes[0] if self.elementwise else prod(sizes)


def _products(values: Array, factors: Sequence[Index], width: int) -> Array:  # (..., width)
    """Return, in each column, the product of the columns of `values` that are its factors."""
    if not factors:
        return np.ones((*values.shape[:-1], width))
    found: Array = values.take(factors[0], axis=-1)
    for factor in factors[1:]:
        found *= values.take(factor, axis=-1)
    return found


class View:
    """The columns that one policy sees of a base vector: features, crosses, a constant. Their order
    does not depend on the order in which they are named.

    scaling           standardises the base vector first; None: it stays as it is
    groups            columns of each name, in order
    context_columns, arm_columns   base columns of either side that the view depends on
    unbounded         crosses whose products may exceed LARGEST_PRODUCT
    """

    def __init__(
        self, schema: Schema, names: Sequence[str], scaling: Scaling | None = None
    ) -> None:
        self.schema, self.scaling = schema, scaling
        self.names = in_order(names)
        self._terms = [_Term(name, schema) for name in self.names]
        stops = list(accumulate((term.width for term in self._terms), initial=0))
        self.groups = [slice(start, stop) for start, stop in pairwise(stops)]
        self.width = stops[-1]
        self.context_columns = self._columns_of(schema.context)
        self.arm_columns = self._columns_of(schema.arm)
        self.unbounded = [
            term.name
            for term in self._terms
            if prod(map(largest_column, term.features)) > LARGEST_PRODUCT
        ]

    @property
    def fault(self) -> str | None:
        """Why no policy may have these features, for people; None: it may."""
        if not self.unbounded:
            return None
        return (
            f"the product {self.unbounded[0]!r} may exceed {LARGEST_PRODUCT:g}: give its features "
            "a clip, or min and max closer to each other"
        )

    @staticmethod
    def unmeasured(schema: Schema, names: Sequence[str]) -> "View":
        """Return the view of a policy that has learned nothing yet. It has a scaling if there is
        anything to measure of the columns that it depends on."""
        view, scaling = View(schema, names), Scaling.of(schema)
        if scaling is None:
            return view
        arm_columns = schema.context.width + view.arm_columns
        columns = np.concatenate([view.context_columns, arm_columns])
        return view.with_scaling(scaling) if scaling.concerns(columns) else view

    def with_scaling(self, scaling: Scaling) -> "View":
        """Return a view of the same columns under another scaling."""
        return View(self.schema, self.names, scaling)

    def measured(self, x: Array, enough: int = ENOUGH) -> "View":  # (n, schema.width)
        """Return the view under the scaling of these rows; itself where they change nothing."""
        if self.scaling is None or not len(x):
            return self
        found = self.scaling.measured(x, enough)
        return self if found is self.scaling else self.with_scaling(found)

    def completed(self, x: Array) -> "View":  # (n, schema.width)
        """Return the view in which the columns that were added later are measured as well."""
        assert self.scaling is not None
        return self.with_scaling(self.scaling.completed(x))

    def standardised(self, x: Array) -> Array:  # (..., schema.width) -> the same
        """Return base vectors as the columns of the view are made from them."""
        return x if self.scaling is None else self.scaling(x)

    def _context(self, x: Array) -> Array:
        return x if self.scaling is None else self.scaling.context(x)

    def _arms(self, x: Array) -> Array:
        return x if self.scaling is None else self.scaling.arms(x)

    def _columns_of(self, side: SideEncoder) -> Index:
        names = {part for term in self._terms for part in term.parts if part in side.features}
        columns = [np.arange(side.width)[side.columns[name]] for name in sorted(names)]
        return np.concatenate(columns or [np.arange(0)])

    def _factor_table(self, columns: Mapping[str, slice]) -> list[Index]:
        """Every column as a product of columns of [1 | values]: which, by factor (width,).
        columns: of the features that are in `values`; the others' factors are left out."""
        most = max((len(term.parts) for term in self._terms), default=0)
        table = np.zeros((most, self.width), np.intp)  # 0: the column of ones
        for term, group in zip(self._terms, self.groups, strict=True):
            places = [
                1 + columns[part].start + step
                for part, step in zip(term.parts, term.steps(), strict=True)
                if part in columns
            ]
            for row, place in zip(table, places, strict=False):
                row[group] = place
        return [row for row in table if row.any()]

    # The width is looked at first, and may be too large for these.

    @cached_property
    def _context_factors(self) -> list[Index]:
        return self._factor_table(self.schema.context.columns)

    @cached_property
    def _arm_factors(self) -> list[Index]:
        return self._factor_table(self.schema.arm.columns)

    @cached_property
    def _factors(self) -> list[Index]:
        """Factors of each column, as columns of [1 | context | arm]."""
        split = self.schema.context.width
        arm = {
            name: slice(split + columns.start, split + columns.stop)
            for name, columns in self.schema.arm.columns.items()
        }
        return self._factor_table(self.schema.context.columns | arm)

    @property
    def factors(self) -> Index:  # (f, width)
        """Columns of [1 | context | arm] whose product each column is."""
        return np.array(self._factors, np.intp).reshape(len(self._factors), self.width)

    @property
    def arm_factors(self) -> Index:  # (f, width)
        """Columns of [1 | arm] whose product is each column's part of the arm's."""
        return np.array(self._arm_factors, np.intp).reshape(-1, self.width)

    @cached_property
    def sides(self) -> tuple[Index, Index, Array]:
        """Columns of the context alone, columns of the arm alone, and the expected squares (2,) of
        both."""
        places = np.arange(self.width)
        context = np.any([row > 0 for row in self._context_factors], axis=0) & (places >= 0)
        arm = np.any([row > 0 for row in self._arm_factors], axis=0) & (places >= 0)
        squares = np.zeros(2)
        for of, side in enumerate((self.schema.context, self.schema.arm)):
            own = [t for t in self._terms if t.parts and all(p in side.features for p in t.parts)]
            squares[of] = sum(term.expected_square() for term in own)
        return np.flatnonzero(context & ~arm), np.flatnonzero(arm & ~context), squares

    @property
    def arm_only(self) -> int:
        """The number of columns of the arm alone."""
        return len(self.sides[1])

    def context_part(self, context: Array) -> Array:  # (..., context.width) -> (..., width)
        """Return the context's part of each column: `design` is its product with `arm_part`."""
        ones = ONE if context.ndim == 1 else np.ones((*context.shape[:-1], 1))
        values = np.concatenate((ones, self._context(context)), axis=-1)
        return _products(values, self._context_factors, self.width)

    def arm_part(self, arms: Array) -> Array:  # (n, arm.width) -> (n, width)
        """Return the arm's part of each column, one row an arm."""
        values = np.hstack([np.ones((len(arms), 1)), self._arms(arms)])
        return _products(values, self._arm_factors, self.width)

    def column_name(self, column: int) -> str:
        """Describe a column for people: `persona=dog x category=toys`."""
        split = self.schema.context.width
        found = [int(row[column]) - 1 for row in self._context_factors if row[column]]
        found += [split + int(row[column]) - 1 for row in self._arm_factors if row[column]]
        return CROSS.join(map(self.schema.column_name, found)) or INTERCEPT

    @property
    def expected_square(self) -> float:
        """Expected square of a row, where numbers are scaled to unit variance: 1 a column, and 1
        for all the columns of a category."""
        return float(sum(term.expected_square() for term in self._terms))

    def design(
        self,
        context: Array,  # (n or 1, context.width)
        arms: Array,  # (n, arm.width)
    ) -> Array:  # (n, width)
        """Rows of what the policy sees, one an arm; a single context serves all arms."""
        contexts = np.broadcast_to(context, (len(arms), context.shape[1]))
        return self.rows(np.hstack([contexts, arms]))

    def rows(self, x: Array) -> Array:  # (n, schema.width) -> (n, width)
        """Return the rows of base vectors."""
        ones = ONE_ROW if len(x) == 1 else np.ones((len(x), 1))
        values = np.concatenate((ones, self.standardised(x)), axis=1)
        return _products(values, self._factors, self.width)
