"""Columns that grow by a row at a time."""

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class Growing:
    """Columns of one length, by name. codes: their types, as `array` has them."""

    def __init__(self, **codes: str) -> None:
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in codes.items()}
        self._in_order = list(self._columns.values())

    def __len__(self) -> int:
        return len(self._in_order[0])

    def append(self, *values: float) -> None:
        """Add a row: a value of each column, in their order."""
        for column, value in zip(self._in_order, values, strict=True):
            column.append(value)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a copy of a column, (n,)."""
        return np.array(self._columns[name])

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all columns, (n,) each."""
        return {name: self[name] for name in self._columns}

    def restore(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the rows that `columns` gave. Raises KeyError or ValueError where they do not
        fit."""
        for name, column in self._columns.items():
            if columns[name].dtype != np.array(column).dtype:
                raise ValueError(f"the column {name} has another type")
            column.frombytes(columns[name].tobytes())
        if len({len(column) for column in self._in_order}) > 1:
            raise ValueError("the columns differ in length")
