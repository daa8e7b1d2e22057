"""Meanings of columns: when features change, what was learned of a column follows its meaning."""

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from service.features.declaration import Boolean, Categorical, Feature, Hashed, Numbers
from service.features.schema import Array, Schema, width
from service.features.view import View

Index = npt.NDArray[np.intp]
ScalarT = TypeVar("ScalarT", bound=np.generic)


def base_meanings(schema: Schema) -> list[tuple[Hashable, ...]]:
    """Meanings of the columns of a base vector, all different.

    A number keeps its meaning while its unit, (value - center) / scale, is the same, a category
    while its value is, wherever it stands in the list.
    """
    return [
        (side, name, *meaning)
        for side, encoder in (("context", schema.context), ("arm", schema.arm))
        for name in encoder.columns
        for meaning in _meanings(encoder.features[name])
    ]


def _meanings(feature: Feature) -> Iterator[tuple[Hashable, ...]]:
    match feature:
        case Boolean():
            yield ("boolean",)
        case Categorical():
            yield from (("value", value) for value in feature.values)
            if feature.unknown == "other":
                yield ("other",)
        case Hashed():
            yield from (("bucket", feature.buckets, bucket) for bucket in range(feature.buckets))
        case Numbers():
            unit = (feature.center or 0.0, feature.scale or 1.0) if feature.declared else None
            size = width(feature)
            yield from (("number", unit, size, column) for column in range(size))


def view_meanings(view: View) -> list[Hashable]:
    """Meanings of the columns that a policy sees: sets of base columns that are multiplied."""
    base = base_meanings(view.schema)
    return [
        frozenset(base[factor - 1] for factor in factors if factor)
        for factors in view.factors.T.tolist()
    ]


def places(old: Sequence[Hashable], new: Sequence[Hashable]) -> Index:
    """Return where each new column was among the old ones; -1 for one that was not there."""
    known = {meaning: place for place, meaning in enumerate(old)}
    return np.array([known.get(meaning, -1) for meaning in new], np.intp)


def taken(
    array: npt.NDArray[ScalarT], index: Index, fill: npt.ArrayLike = 0
) -> npt.NDArray[ScalarT]:  # (..., n) -> (..., k)
    """Return the columns at these places; `fill` in those that were not there."""
    found = np.empty((*array.shape[:-1], len(index)), array.dtype)
    found[:] = fill
    found[..., index >= 0] = array[..., index[index >= 0]]
    return found


def unknown(schema: Schema) -> Array:  # (schema.width,)
    """Return what a base vector has in each column that it did not know: NaN, which standardises to
    0, in a number whose scale is measured, else 0."""
    meanings = base_meanings(schema)
    measured = [meaning[2:4] == ("number", None) for meaning in meanings]
    return np.where(measured, np.nan, 0.0)
