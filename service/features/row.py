"""Base vectors as they are kept: in tokens, rows of decisions, events, memories and snapshots.

A category is kept as a place, not as a column for each of its values. Numbers keep every bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import gt
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from service.errors import Damaged

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
PlaceArray = npt.NDArray[np.unsignedinteger[Any]]

NUMBER_TYPE = np.dtype("<f8")

ZERO = bytes(NUMBER_TYPE.itemsize)


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The base vector of a decision. Only the `RowLayout` of its schema knows what it means.

    numbers   little-endian 8-byte floats of numeric features and vectors, in the order of columns
    places    of each boolean, categorical and hashed feature, the column among its own that is 1,
              from 1 on; 0: none
    """

    numbers: bytes
    places: tuple[Annotated[int, Meta(ge=0)], ...]

    def lists(self) -> dict[str, Sequence[float]]:
        """Return the members as lists, for people; an incomplete number is left out."""
        numbers = np.frombuffer(self.numbers, NUMBER_TYPE, len(self.numbers) // len(ZERO))
        return {"numbers": numbers.tolist(), "places": list(self.places)}


class RowLayout:
    """How the base vectors of a schema are packed.

    blocks       (width,) which boolean or category a column belongs to, from 0 on; -1: a number
    sizes        (places,) columns of each boolean and category
    place_type   of arrays of places
    """

    def __init__(self, blocks: Index) -> None:
        self.blocks, self.width = blocks, len(blocks)
        self._numbers = np.flatnonzero(blocks < 0)
        self._ones = np.flatnonzero(blocks >= 0)
        own = blocks[self._ones]
        self.sizes: Index = np.bincount(own)
        starts = np.cumsum(self.sizes) - self.sizes
        self._before = self._ones[starts] - 1  # place 1 is the column after it
        self._before_each: list[int] = self._before.tolist()
        places = self._ones - self._before[own]
        self._place_of: list[tuple[int, int]] = list(
            zip(own.tolist(), places.tolist(), strict=True)
        )
        self._sources = np.full(len(blocks), len(self._numbers))  # of columns: a number, or the 0
        self._sources[self._numbers] = np.arange(len(self._numbers))  # after the numbers
        self._most: list[int] = self.sizes.tolist()
        self.place_type = np.min_scalar_type(max(self._most, default=0))

    @property
    def widths(self) -> tuple[int, int]:
        """Count the numbers and the places of a row."""
        return len(self._numbers), len(self.sizes)

    def pack(self, x: Array) -> Row:  # (width,)
        """Pack a base vector."""
        places = [0] * len(self._most)
        for one in x.take(self._ones).nonzero()[0].tolist():
            block, place = self._place_of[one]
            places[block] = place
        return Row(x.take(self._numbers).tobytes(), tuple(places))

    def unpack(self, rows: Sequence[Row]) -> Array:  # (n, width)
        """Unpack rows of this layout, as `expect` says."""
        numbers = np.frombuffer(b"".join([row.numbers + ZERO for row in rows]), NUMBER_TYPE)
        x = numbers.reshape(len(rows), len(self._numbers) + 1).take(self._sources, axis=1)
        for of, row in enumerate(rows):
            for before, place in zip(self._before_each, row.places, strict=True):
                if place:
                    x[of, before + place] = 1.0
        return x

    def holds(self, row: Row) -> bool:
        """Whether a row has this layout."""
        size, most = len(ZERO) * len(self._numbers), self._most
        alike = len(row.numbers) == size and len(row.places) == len(most)
        return alike and not any(map(gt, row.places, most))

    def expect(self, row: Row) -> None:
        """Raise Damaged where a row has another layout."""
        if self.holds(row):
            return
        size, most = len(ZERO) * len(self._numbers), self._most
        if len(row.numbers) != size or len(row.places) != len(most):
            raise Damaged(
                f"a row has {len(row.numbers)} bytes of numbers and {len(row.places)} places, and "
                f"its features have {size} and {len(most)}"
            )
        raise Damaged(f"a row has the places {row.places} in features of {most} columns")

    def split(
        self, x: Array
    ) -> tuple[Array, PlaceArray]:  # (n, width) -> (n, numbers), (n, places)
        """Pack many base vectors."""
        places = np.zeros((len(x), len(self.sizes)), self.place_type)
        of, ones = x[:, self._ones].nonzero()
        columns = self._ones[ones]
        block = self.blocks[columns]
        places[of, block] = columns - self._before[block]
        return x[:, self._numbers], places

    def join(self, numbers: Array, places: PlaceArray) -> Array:  # (n, width)
        """Return the base vectors that were `split`."""
        x = np.zeros((len(numbers), self.width))
        x[:, self._numbers] = numbers
        of, block = places.nonzero()
        x[of, self._before[block] + places[of, block]] = 1.0
        return x

    def column(self, column: int, numbers: Array, places: PlaceArray) -> Array:  # (n,)
        """Return one column of base vectors that were `split`."""
        block = self.blocks[column]
        if block < 0:
            found: Array = numbers[:, np.searchsorted(self._numbers, column)]
            return found
        ones: Array = (places[:, block] == column - self._before[block]).astype(float)
        return ones


class PackedRows:
    """Rows of one layout, side by side. A slice of them is unpacked: `rows[-8:]` is (8, width)."""

    def __init__(self, layout: RowLayout, rows: Sequence[Row] = ()) -> None:
        self.layout, self._count = layout, 0
        numbers, places = layout.widths
        self._numbers = np.empty((len(rows), numbers))
        self._places = np.empty((len(rows), places), layout.place_type)
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, chosen: slice) -> Array:  # (n, width)
        numbers, places = self._parts
        return self.layout.join(numbers[chosen], places[chosen])

    def __iter__(self) -> Iterator[Row]:
        for numbers, places in zip(*self._parts, strict=True):
            yield Row(numbers.tobytes(), tuple(places.tolist()))

    @property
    def _parts(self) -> tuple[Array, PlaceArray]:
        return self._numbers[: self._count], self._places[: self._count]

    def append(self, row: Row) -> None:
        if self._count == len(self._numbers):
            more = max(self._count, 64)
            self._numbers = _lengthened(self._numbers, more)
            self._places = _lengthened(self._places, more)
        self._numbers[self._count] = np.frombuffer(row.numbers, NUMBER_TYPE)
        self._places[self._count] = row.places
        self._count += 1

    def remove(self, row: int) -> None:
        """Remove a row; those after it move up."""
        for part in (self._numbers, self._places):
            part[row : self._count - 1] = part[row + 1 : self._count]
        self._count -= 1

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows alone."""
        self._numbers, self._places = self._numbers[rows], self._places[rows]
        self._count = len(rows)

    def column(self, column: int) -> Array:  # (n,)
        """Return a column of the base vectors."""
        return self.layout.column(column, *self._parts)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        numbers, places = self._parts
        return {"rows.numbers": numbers, "rows.places": places}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], count: int) -> None:
        """Take the rows that `arrays` returned. Raises ValueError where they are not so many rows
        of the layout."""
        numbers, places = self.layout.widths
        self._numbers = np.array(arrays["rows.numbers"], float).reshape(count, numbers)
        self._places = np.array(arrays["rows.places"], self.layout.place_type).reshape(
            count, places
        )
        if count and (self._places > self.layout.sizes).any():
            raise ValueError("a row has a place beyond its category")
        self._count = count


def _lengthened(part: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    return np.concatenate([part, np.empty((more, part.shape[1]), part.dtype)])
