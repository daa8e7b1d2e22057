"""Statements of many rows on SQLite."""

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

ROWS = 64
"""Rows of one statement, at most. A thread lets go of the interpreter at each statement, and on a
busy core waits to have it back: with a statement a row that was most of a commit."""


def select(
    db: sqlite3.Connection, query: str, values: Sequence[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    return [row for cursor in statements(db, query, values) for row in cursor]


def run(db: sqlite3.Connection, query: str, values: Sequence[tuple[Any, ...]]) -> None:
    for _ in statements(db, query, values):
        pass


def statements(
    db: sqlite3.Connection, query: str, values: Sequence[tuple[Any, ...]]
) -> Iterator[sqlite3.Cursor]:
    """The query with {} for rows of values."""
    for start in range(0, len(values), ROWS):
        rows = values[start : start + ROWS]
        yield db.execute(_filled(query, len(rows), len(rows[0])), [*chain.from_iterable(rows)])


@cache
def _filled(query: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return query.format(", ".join([row] * rows))
