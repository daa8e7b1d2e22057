"""Tables read from CSV files, and the feature schema that their columns suggest."""

import csv
import gzip
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator_client.errors import UsageError

NAME_CHARACTERS: Final = 64
TEXT_CHARACTERS: Final = 256
CATEGORIES: Final = 10_000  # values of a categorical feature at most
BUCKETS: Final = 1_024  # of a column with more values
WIDTH: Final = 4_000  # columns that a policy may see, less some for the arms
GZIP_MAGIC: Final = b"\x1f\x8b"
CSV_FIELD_CHARACTERS: Final = 1 << 20
LARGEST: Final = 1e15  # number that the service takes without a scale


def read_table(path: Path) -> dict[str, list[str]]:
    """Read the columns of a CSV file with a header, gzipped or not; UsageError where it is none."""
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == GZIP_MAGIC
        with (gzip.open if gzipped else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(path, csv.reader(file)))
    except (OSError, EOFError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except (UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise UsageError(f"{path} is not a CSV file: {error}") from error
    if len(rows) < 2:
        raise UsageError(f"{path} has no rows")
    header, *body = rows
    if len(set(header)) < len(header):
        raise UsageError(f"{path} has two columns of the same name")
    return dict(zip(header, map(list, zip(*body, strict=True)), strict=True))


def _rows(path: Path, reader: Any) -> Iterator[list[str]]:
    csv.field_size_limit(CSV_FIELD_CHARACTERS)
    width = None
    for row in reader:
        if not row:
            continue
        if width is not None and len(row) != width:
            raise UsageError(f"{path}, line {reader.line_num}: {len(row)} columns, not {width}")
        width = len(row)
        yield row


def numbers(values: Sequence[str]) -> list[float] | None:
    """Return the values as finite numbers; None where one is none."""
    try:
        parsed = [float(value) for value in values]
    except ValueError:
        return None
    return parsed if np.isfinite(parsed).all() else None


class Columns:
    """Columns as features: their schema on the wire, and their values row by row.

    A column of numbers is numeric; policies measure its scale. Any other, and one with numbers that
    the service refuses, is categorical with its sorted values. A column that never varies says
    nothing and is left out. One with more than 10,000 values is hashed, and so is the one with the
    most values while all together would be more than a policy may see. Names become such as the
    service takes, each another.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], taken: Collection[str] = ()) -> None:
        self.schema: dict[str, dict[str, Any]] = {}
        self._values: dict[str, Sequence[str | float]] = {}
        for label, raw in columns.items():
            described = _described([value[:TEXT_CHARACTERS] for value in raw])
            if described:
                name = valid_name(label, {"intercept", *taken, *self.schema})
                self.schema[name], self._values[name] = described
        self._hash_the_widest()

    def column(self, name: str) -> Sequence[str | float]:
        """Return the values of a feature, row by row."""
        return self._values[name]

    def row(self, index: int) -> dict[str, str | float]:
        return {name: values[index] for name, values in self._values.items()}

    def _hash_the_widest(self) -> None:
        while True:
            widths = {
                name: len(feature["values"])
                for name, feature in self.schema.items()
                if feature["type"] == "categorical"
            }
            rest = sum(
                BUCKETS if feature["type"] == "hashed" else 1
                for name, feature in self.schema.items()
                if name not in widths
            )
            widest = max(widths, key=lambda name: widths[name], default=None)
            if widest is None or widths[widest] <= BUCKETS:
                return
            if widths[widest] <= CATEGORIES and rest + sum(widths.values()) <= WIDTH:
                return
            self.schema[widest] = {"type": "hashed", "buckets": BUCKETS}


def _described(values: Sequence[str]) -> tuple[dict[str, Any], Sequence[str | float]] | None:
    """Return schema and values of a column; None where it never varies."""
    distinct = set(values)
    if len(distinct) < 2:
        return None
    parsed = numbers(values)
    if parsed is not None:
        if min(parsed) == max(parsed):
            return None
        if max(map(abs, parsed)) <= LARGEST:
            return {"type": "numeric"}, parsed
    return {"type": "categorical", "values": sorted(distinct)}, values


def valid_name(label: str, taken: Collection[str]) -> str:
    """Return a feature name like the label that the service takes and nothing else has."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", label)
    if not re.match(r"[A-Za-z0-9_]", name):
        name = "_" + name
    name = name[:NAME_CHARACTERS]
    unique, number = name, 1
    while unique in taken:
        number += 1
        suffix = f"_{number}"
        unique = name[: NAME_CHARACTERS - len(suffix)] + suffix
    return unique
