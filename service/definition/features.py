"""Named features to numbers, once: `Schema` encodes base columns, `View` makes what a policy sees.

The base vector x of a decision is its context's columns followed by its arm's. It is what tokens,
events and training data hold; crosses are functions of it and never stored.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from sys import float_info
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from service.definition.experiment import (
    CROSS,
    INTERCEPT,
    Boolean,
    Categorical,
    Feature,
    Features,
    Hashed,
    Numbers,
    Numeric,
    Vector,
)
from service.errors import Fault, Invalid

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

LARGEST_PRODUCT = 1e60
"""Of the numbers of a cross, on the side of the context and on that of the arm: the square of a
row's square is a float, and no sum of them overflows."""

ONE, ONE_ROW = np.ones(1), np.ones((1, 1))

LARGEST = 1e9
"""Of a number after its scaling: the square of its products is far from overflow. At 1e155 a single
reward would make A infinite, and the log would keep it so."""


def width(feature: Feature) -> int:
    """Columns that a feature takes."""
    match feature:
        case Numeric() | Boolean():
            return 1
        case Categorical():
            return len(feature.values) + (feature.unknown == "other")
        case Hashed():
            return feature.buckets
        case Vector():
            return feature.size


ORDINARY = 1e100
"""Numbers, centers and scales up to it, and down to its inverse, that cannot overflow."""


class _Clips(NamedTuple):
    """limit: of a column. least, most: of the value itself, as `min` and `max` have them."""

    limit: float
    least: float
    most: float

    def within(self, value: float, column: float) -> float | None:
        """The column of a value; None where the value is refused."""
        if not self.least <= value <= self.most:
            return None
        return min(self.limit, max(-self.limit, column))


class _Step(NamedTuple):
    """One feature of a plan.

    kind        the type that its value has to be of
    low, high   of a number: between them nothing is refused or clipped
    clips       of a number: beyond them it is clipped, where it is finite and not refused
    """

    name: str
    kind: Any
    start: int
    default: Any
    center: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 1.0
    clips: _Clips | None = None
    category: Categorical | Hashed | None = None


class _Block(NamedTuple):
    """One vector of a plan."""

    name: str
    columns: slice
    center: float
    scale: float
    low: float
    high: float


def _ordinary(feature: Numbers) -> tuple[float, float]:
    """Ends between which a number is neither refused nor clipped, whatever rounding does."""
    reach = (1 - 1e-9) * limit_of(feature) * feature.scale
    low, high = max(feature.center - reach, -ORDINARY), min(feature.center + reach, ORDINARY)
    least = low if feature.min is None else max(low, feature.min)
    return least, high if feature.max is None else min(high, feature.max)


def _clips(feature: Numeric) -> _Clips | None:
    if feature.clip is None:
        return None
    least = -float_info.max if feature.min is None else feature.min
    most = float_info.max if feature.max is None else feature.max
    return _Clips(limit_of(feature), least, most)


def limit_of(feature: Numbers) -> float:
    """How far from 0 a column of it may be."""
    return LARGEST if feature.clip is None else min(feature.clip, LARGEST)


class _Side:
    """The features of the context, or of an arm, side by side, in the order of their names: the
    same definition written in another order has the same columns.

    clipped   how many values of each feature lay beyond its clip
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self.features = features
        self.clipped: dict[str, int] = {
            name: 0
            for name, feature in features.items()
            if isinstance(feature, Numbers) and feature.clip is not None
        }
        self.columns: dict[str, slice] = {}
        stop = 0
        for name, feature in sorted(features.items()):
            start, stop = stop, stop + width(feature)
            self.columns[name] = slice(start, stop)
        self.width = stop
        self._indexes = {
            name: {value: index for index, value in enumerate(feature.values)}
            for name, feature in features.items()
            if isinstance(feature, Categorical)
        }
        self._zeros = [0.0] * self.width
        self._vectors: list[_Block] = []
        self._plan = self._make_plan()

    def _make_plan(self) -> list[_Step] | None:
        """How to encode each feature, beside the vectors; None where one is out of the ordinary."""
        plan = []
        for name, feature in self.features.items():
            start, default = self.columns[name].start, getattr(feature, "default", None)
            match feature:
                case Numeric(center=center, scale=scale):
                    ends = _ordinary(feature)
                    clips = _clips(feature)
                    plan.append(_Step(name, float, start, default, center, scale, *ends, clips))
                case Boolean():
                    plan.append(_Step(name, bool, start, default))
                case Categorical() | Hashed():
                    plan.append(_Step(name, str, start, default, category=feature))
                case Vector(center=center, scale=scale):
                    if abs(center) > ORDINARY or scale < 1 / ORDINARY:
                        return None
                    block = _Block(name, self.columns[name], center, scale, *_ordinary(feature))
                    self._vectors.append(block)
        return plan

    def encode(self, values: Mapping[str, Any], path: str) -> Array:
        """Columns of named values. Raises Invalid that names each fault under `path`."""
        x = None if self._plan is None else self._encode_plain(self._plan, values)
        return self._encode_any(values, path) if x is None else x

    def _encode_plain(self, plan: list[_Step], values: Mapping[str, Any]) -> Array | None:
        """The same to the last bit, without an array a feature: in a quarter of the time. None
        where something is amiss or out of the ordinary."""
        if self._vectors and not plan:
            return self._encode_vectors(np.empty(self.width), values, 0)
        x, given = self._zeros.copy(), 0
        beyond: tuple[str, ...] = ()
        for name, kind, start, default, center, scale, low, high, clips, category in plan:
            value: Any = values.get(name)
            if value is None:
                value = default
            else:
                given += 1
            if type(value) is not kind:
                return None
            if category is not None:
                index = self._index(name, category, value)
                if index is None:
                    return None
                x[start + index] = 1.0
                continue
            column = (value - center) / scale
            if not low <= value <= high:
                within = None if clips is None else clips.within(value, column)
                if within is None:
                    return None
                beyond += (name,) * (within != column)
                column = within
            x[start] = column
        found = self._encode_vectors(np.array(x), values, given)
        if found is not None:
            self._count(beyond)
        return found

    def _encode_vectors(self, x: Array, values: Mapping[str, Any], given: int) -> Array | None:
        """given: how many of the values are in x."""
        for name, columns, center, scale, low, high in self._vectors:
            value: Any = values.get(name)
            if type(value) is not list or len(value) != columns.stop - columns.start:
                return None
            if not low <= min(value) <= max(value) <= high:
                return None
            own = x[columns]
            own[:] = value
            if center != 0 or scale != 1:
                own -= center
                own /= scale
            if not own.dot(own) <= LARGEST**2:  # none is longer; nor is one no number
                return None
        return x if given + len(self._vectors) == len(values) else None

    def _encode_any(self, values: Mapping[str, Any], path: str) -> Array:
        x, clipped = np.zeros(self.width), list[str]()
        faults = [
            Fault(f"{path}.{name}", "there is no such feature")
            for name in values.keys() - self.features.keys()
        ]
        for name, feature in self.features.items():
            value = values.get(name, getattr(feature, "default", None))
            columns = x[self.columns[name]]
            message = "is missing" if value is None else self._encode(name, feature, value, columns)
            if message:
                faults.append(Fault(f"{path}.{name}", message))
            elif isinstance(feature, Numbers) and _clip(feature, columns):
                clipped.append(name)
        if faults:
            raise Invalid("a feature is missing, unknown or of a wrong value", faults=faults)
        self._count(clipped)
        return x

    def _count(self, clipped: Iterable[str]) -> None:
        for name in clipped:
            self.clipped[name] += 1

    def _encode(self, name: str, feature: Feature, value: Any, columns: Array) -> str:
        """Fill the columns of one feature; what is wrong with its value, or ''."""
        match feature:
            case Categorical() | Hashed():
                if not isinstance(value, str):
                    return "must be a string"
                index = self._index(name, feature, value)
                if index is None:
                    return "is not one of the known values"
                columns[index] = 1.0
                return ""
            case Boolean():
                columns[0] = value is True
                return "" if isinstance(value, bool) else "must be true or false"
            case Numeric():
                if isinstance(value, bool) or not isinstance(value, int | float):
                    return "must be a number"
            case Vector():
                if not isinstance(value, list) or len(value) != feature.size:
                    return f"must be a list of {feature.size} numbers"
        return _scale(feature, value, columns)

    def _index(self, name: str, feature: Categorical | Hashed, value: str) -> int | None:
        """The column of a value; None where it is unknown, and that is refused."""
        if isinstance(feature, Hashed):
            return _bucket(name, value, feature.buckets)
        other = len(feature.values) if feature.unknown == "other" else None
        return self._indexes[name].get(value, other)


def _scale(feature: Numbers, value: Any, columns: Array) -> str:
    """Fill columns with numbers; what is wrong with them, or ''."""
    given = np.asarray(value, dtype=float)
    if feature.min is not None and not given.min() >= feature.min:
        return f"must be at least {feature.min:g}"
    if feature.max is not None and not given.max() <= feature.max:
        return f"must be at most {feature.max:g}"
    with np.errstate(over="ignore"):
        columns[:] = (given - feature.center) / feature.scale
    if feature.clip is not None and np.isfinite(given).all():
        return ""
    if not np.isfinite(columns).all():
        return "must be finite"
    if np.abs(columns).max() > LARGEST:
        return f"must lie within {LARGEST:g} of its center, in units of its scale"
    return ""


def _clip(feature: Numbers, columns: Array) -> bool:
    """Clip columns to what a feature allows; whether one lay beyond."""
    if feature.clip is None:
        return False
    limit = limit_of(feature)
    beyond = bool(np.abs(columns).max() > limit)
    np.clip(columns, -limit, limit, out=columns)
    return beyond


def _bucket(name: str, value: str, buckets: int) -> int:
    """A bucket that is the same on every machine and in every version."""
    digest = hashlib.blake2b(value.encode(), key=name.encode()[:64], digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


class Schema:
    """The base columns of an experiment's features."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.context = _Side(features.context)
        self.arm = _Side(features.arm)
        self.width = self.context.width + self.arm.width

    def column_name(self, column: int) -> str:
        """What a base column says, for people: `persona=cat_connoisseur`, `age`, `embedding[3]`."""
        in_context = column < self.context.width
        side = self.context if in_context else self.arm
        index = column if in_context else column - self.context.width
        for name, columns in side.columns.items():
            if columns.start <= index < columns.stop:
                feature, within = side.features[name], index - columns.start
                if isinstance(feature, Categorical):
                    known = within < len(feature.values)
                    return f"{name}={feature.values[within]}" if known else f"{name}: other"
                return name if width(feature) == 1 else f"{name}[{within}]"
        raise IndexError(f"there is no column {column}")

    @property
    def clipped(self) -> dict[str, int]:
        """How many values of each feature lay beyond its clip, since the features were defined or
        this process began."""
        return self.context.clipped | self.arm.clipped

    def encode_context(self, values: Mapping[str, Any]) -> Array:  # (context.width,)
        return self.context.encode(values, "context")

    def encode_arm(
        self, values: Mapping[str, Any], path: str = "features"
    ) -> Array:  # (arm.width,)
        return self.arm.encode(values, path)


def reach(feature: Feature) -> float:
    """The largest size of a column of it."""
    if not isinstance(feature, Numbers):
        return 1.0
    found = limit_of(feature)
    if feature.min is not None and feature.max is not None:
        ends = feature.min - feature.center, feature.max - feature.center
        found = min(found, max(abs(end) for end in ends) / feature.scale)
    return found


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
            if prod(reach(self._feature(part)) for part in parts) > LARGEST_PRODUCT
        ]
        """Crosses whose products may be too large to be made as they are. None is defined any more;
        an older log may have some."""

    def _columns_of(self, side: _Side) -> npt.NDArray[np.intp]:
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
