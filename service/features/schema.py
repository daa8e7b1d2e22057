"""Named features as numbers. `Schema` encodes the base columns of an experiment.

The base vector x of a decision is its context's columns followed by its arm's. Tokens, events and
training data hold it as a `Row`; crosses are functions of it and never stored.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from math import copysign, inf, isfinite

import numpy as np

from service.errors import Fault, Invalid
from service.features.declaration import (
    CLIP,
    Boolean,
    Categorical,
    Feature,
    Features,
    Hashed,
    Numbers,
    Numeric,
    Vector,
)
from service.features.row import Array as Array
from service.features.row import Index, Row, RowLayout
from service.naming import listed, suggestion

LARGEST = 1e9
"""Limit of a number in declared scales: the squares of its products are far from overflow. At 1e155
a single reward would make A infinite."""

LARGEST_MEASURED = 1e15
"""Limit of a number whose scale is measured. Policies standardise and clip it."""

FeatureEncoder = Callable[[object, Array, list[str]], str]
"""Fills the columns of one feature in x and adds its name to the clipped ones where its value lies
beyond its clip. Returns the fault in the value, or ''."""


def width(feature: Feature) -> int:
    """Count the columns of a feature."""
    match feature:
        case Numeric() | Boolean():
            return 1
        case Categorical():
            return len(feature.values) + (feature.unknown == "other")
        case Hashed():
            return feature.buckets
        case Vector():
            return feature.size


def distinct_contexts(features: Features) -> float:
    """Count the contexts that differ; infinite where one of their features is a number."""
    found = 1.0
    for feature in features.context.values():
        match feature:
            case Boolean():
                found *= 2
            case Categorical() | Hashed():
                found *= width(feature)
            case _:
                return inf
    return found


def largest_column(feature: Feature) -> float:
    """Return the largest absolute value that a policy sees of a column of the feature."""
    if not isinstance(feature, Numbers):
        return 1.0
    if not feature.declared:
        return feature.clip or CLIP
    limit = _limit(feature)
    if feature.min is None or feature.max is None:
        return limit
    return min(limit, max(abs(feature.scaled(end)) for end in (feature.min, feature.max)))


def _limit(feature: Numbers) -> float:
    """Return the largest absolute value of a column of the base vector."""
    if not feature.declared:
        return LARGEST_MEASURED
    if feature.clip is not None:
        return min(feature.clip, LARGEST)
    return LARGEST if feature.has_bounds else CLIP


def _encoder(name: str, feature: Feature, columns: slice) -> FeatureEncoder:
    match feature:
        case Numeric():
            return _number_encoder(name, feature, columns.start)
        case Vector():
            return _vector_encoder(name, feature, columns)
        case Boolean():
            return _boolean_encoder(columns.start)
        case Categorical() | Hashed():
            return _category_encoder(name, feature, columns.start)


def _number_encoder(name: str, feature: Numeric, column: int) -> FeatureEncoder:
    center, scale, limit = feature.center or 0.0, feature.scale or 1.0, _limit(feature)
    bounded = feature.min is not None or feature.max is not None
    clips = _clips(feature)

    def encode(given: object, x: Array, clipped: list[str]) -> str:
        if type(given) is float:
            value = given
        elif isinstance(given, int) and not isinstance(given, bool):
            value = float(given)
        else:
            return "must be a number"
        if bounded and (fault := _outside(feature, value, value)):
            return fault
        scaled = (value - center) / scale
        if not abs(scaled) <= limit:
            if not clips or not isfinite(value):
                return _too_far(scaled, limit)
            clipped.append(name)
            scaled = copysign(limit, scaled)
        x[column] = scaled
        return ""

    return encode


def _vector_encoder(name: str, feature: Vector, columns: slice) -> FeatureEncoder:
    center, scale, limit = feature.center or 0.0, feature.scale or 1.0, _limit(feature)
    bounded = feature.min is not None or feature.max is not None
    clips = _clips(feature)

    def encode(given: object, x: Array, clipped: list[str]) -> str:
        if not isinstance(given, list) or len(given) != feature.size:
            return f"must be a list of {feature.size} numbers"
        values = np.asarray(given, dtype=float)
        if bounded and (fault := _outside(feature, values.min(), values.max())):
            return fault
        with np.errstate(over="ignore"):
            scaled = (values - center) / scale
        largest = np.abs(scaled).max()
        if not largest <= limit:
            if not clips or not np.isfinite(values).all():
                return _too_far(largest, limit)
            clipped.append(name)
            np.clip(scaled, -limit, limit, out=scaled)
        x[columns] = scaled
        return ""

    return encode


def _outside(feature: Numbers, smallest: float, largest: float) -> str:
    if feature.min is not None and not smallest >= feature.min:
        return f"must be at least {feature.min:g}"
    if feature.max is not None and not largest <= feature.max:
        return f"must be at most {feature.max:g}"
    return ""


def _clips(feature: Numbers) -> bool:
    """Whether values beyond the limit are clipped; otherwise they are refused."""
    return feature.declared and (feature.clip is not None or not feature.has_bounds)


def _too_far(scaled: float, limit: float) -> str:
    if not isfinite(scaled):
        return "must be finite"
    return f"must lie within {limit:g} of its center, in units of its scale"


def _boolean_encoder(column: int) -> FeatureEncoder:
    def encode(given: object, x: Array, _: list[str]) -> str:
        if not isinstance(given, bool):
            return "must be true or false"
        x[column] = given
        return ""

    return encode


def _category_encoder(name: str, feature: Categorical | Hashed, start: int) -> FeatureEncoder:
    index: Callable[[str], int | None]
    values = list[str]()
    if isinstance(feature, Hashed):
        buckets = feature.buckets

        def index(value: str) -> int:
            return _bucket(name, value, buckets)
    else:
        values = feature.values
        index = {value: place for place, value in enumerate(values)}.get
    other = None
    if isinstance(feature, Categorical) and feature.unknown == "other":
        other = len(values)

    def encode(given: object, x: Array, _: list[str]) -> str:
        if not isinstance(given, str):
            return "must be a string"
        place = index(given)
        if place is None:
            place = other
        if place is None:
            return f"is not one of the known values: {listed(values)}"
        x[start + place] = 1.0
        return ""

    return encode


def _bucket(name: str, value: str, buckets: int) -> int:
    """Return a bucket that is the same on every machine and in every version."""
    digest = hashlib.blake2b(value.encode(), key=name.encode()[:64], digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


class SideEncoder:
    """Encodes the features of the context, or of an arm, side by side in the order of their names:
    the same definition written in another order has the same columns.

    clipped   how many values of each feature lay beyond its clip
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self.features = features
        self.clipped: dict[str, int] = {
            name: 0
            for name, feature in features.items()
            if isinstance(feature, Numbers) and _clips(feature)
        }
        self.columns: dict[str, slice] = {}
        stop = 0
        for name, feature in sorted(features.items()):
            start, stop = stop, stop + width(feature)
            self.columns[name] = slice(start, stop)
        self.width = stop
        self._encoders = [
            (
                name,
                None if isinstance(feature, Vector) else feature.default,
                _encoder(name, feature, self.columns[name]),
            )
            for name, feature in features.items()
        ]

    def encode(
        self, values: Mapping[str, object], path: str, attributes: Collection[str] = ()
    ) -> Array:
        """Columns of named values. attributes: names that may stand beside them, for whoever
        mistook one. Raises Invalid that names each fault under `path`."""
        x, clipped, faults = np.zeros(self.width), list[str](), list[Fault]()
        if not values.keys() <= self.columns.keys():
            first, *others = sorted(values.keys() - self.columns.keys())
            say = "there is no such feature" + " or attribute" * bool(attributes)
            near = suggestion(first, [*self.columns, *attributes])  # once: it takes a while
            faults = [Fault(f"{path}.{first}", say + near)]
            faults += [Fault(f"{path}.{name}", say) for name in others]
        for name, default, encode in self._encoders:
            value = values.get(name)
            if value is None:
                value = default
            fault = "is missing" if value is None else encode(value, x, clipped)
            if fault:
                faults.append(Fault(f"{path}.{name}", fault))
        if faults:
            raise Invalid("a feature is missing, unknown or of a wrong value", faults=faults)
        for name in clipped:
            self.clipped[name] += 1
        return x

    def column_name(self, column: int) -> str:
        """Describe a column for people: `persona=cat_connoisseur`, `age`, `embedding[3]`."""
        for name, columns in self.columns.items():
            if columns.start <= column < columns.stop:
                feature, within = self.features[name], column - columns.start
                if isinstance(feature, Categorical):
                    known = within < len(feature.values)
                    return f"{name}={feature.values[within]}" if known else f"{name}: other"
                return name if width(feature) == 1 else f"{name}[{within}]"
        raise IndexError(f"there is no column {column}")


def _blocks(features: Iterable[Feature]) -> Index:
    """Return which boolean or category each column of the features belongs to; -1: a number."""
    found, places = list[int](), 0
    for feature in features:
        number = isinstance(feature, Numbers)
        found += [-1 if number else places] * width(feature)
        places += not number
    return np.array(found, np.intp)


class Schema:
    """The base columns of an experiment's features. layout: of a base vector as it is kept."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.context = SideEncoder(features.context)
        self.arm = SideEncoder(features.arm)
        self.width = self.context.width + self.arm.width
        sides = (self.context, self.arm)
        self.layout = RowLayout(
            _blocks(side.features[name] for side in sides for name in side.columns)
        )

    def column_name(self, column: int) -> str:
        split = self.context.width
        if column < split:
            return self.context.column_name(column)
        return self.arm.column_name(column - split)

    @property
    def clipped(self) -> dict[str, int]:
        """How many values of each feature lay beyond its clip, since the features were defined or
        this process began."""
        return self.context.clipped | self.arm.clipped

    def encode_context(self, values: Mapping[str, object]) -> Array:  # (context.width,)
        return self.context.encode(values, "context")

    def encode_arm(
        self,
        values: Mapping[str, object],
        path: str = "features",
        attributes: Collection[str] = (),
    ) -> Array:  # (arm.width,)
        return self.arm.encode(values, path, attributes)

    def row(
        self,
        context: Array,  # (context.width,)
        arm: Array,  # (arm.width,)
    ) -> Row:
        """Pack the base vector of an arm in a context."""
        return self.layout.pack(np.concatenate((context, arm)))
