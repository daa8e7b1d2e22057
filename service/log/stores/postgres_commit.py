"""A commit of the shared store on PostgreSQL: what its entries depend on, and its tables."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from psycopg import AsyncCursor

from service.log.stores.base import digest
from service.log.stores.batch import Transaction
from service.log.stores.postgres_connection import Connection

SqlRow = tuple[Any, ...]

MAKE = (
    "INSERT INTO forage_experiments (name) SELECT unnest(%b::bytea[]) ON CONFLICT (name) DO NOTHING"
)
# Rows are locked in one order, so that no two commits wait for each other.
LOCK = (
    "SELECT name, position, digest, last_row, extract(epoch FROM now())::float8 "
    "FROM forage_experiments WHERE name = ANY(%b::bytea[]) ORDER BY name FOR UPDATE"
)
KNOWN_MARKS = (
    "SELECT m.experiment, m.identity, m.value, m.position "
    "FROM unnest(%b::bytea[], %b::bytea[]) AS k (experiment, name) JOIN forage_marks m "
    "ON m.experiment = k.experiment AND forage_key(m.identity) = forage_key(k.name)"
)
KEPT_ROWS = (
    "SELECT d.experiment, d.id, d.payload "
    "FROM unnest(%b::bytea[], %b::bytea[]) AS k (experiment, name) JOIN forage_decisions d "
    "ON d.experiment = k.experiment AND forage_key(d.id) = forage_key(k.name)"
)
PUT_MARKS = (
    "INSERT INTO forage_marks SELECT * FROM "
    "unnest(%b::bytea[], %b::bytea[], %b::bytea[], %s::int8[], %s::float8[]) "
    "ON CONFLICT (experiment, forage_key(identity)) DO UPDATE SET value = excluded.value, "
    "position = excluded.position, keep_until = excluded.keep_until"
)
# One statement, since each costs the event loop 0.1 ms. Its parts do not see each other's rows.
WRITE = (
    "WITH events AS (INSERT INTO forage_events "  # noqa: S608
    "SELECT * FROM unnest(%b::bytea[], %s::int8[], %b::bytea[])), "
    f"marks AS ({PUT_MARKS}), "
    "decisions AS (INSERT INTO forage_decisions "
    "SELECT * FROM unnest(%b::bytea[], %s::int8[], %b::bytea[], %b::bytea[])), "
    "counts AS (INSERT INTO forage_decision_counts "
    "SELECT * FROM unnest(%b::bytea[], %b::bytea[], %s::int8[]) ON CONFLICT (experiment, series) "
    "DO UPDATE SET decisions = forage_decision_counts.decisions + excluded.decisions), "
    "waiting AS (INSERT INTO forage_due "
    "SELECT * FROM unnest(%b::bytea[], %b::bytea[], %s::float8[]) "
    "ON CONFLICT (experiment, forage_key(decision)) DO UPDATE SET due = excluded.due "
    "WHERE forage_due.due IS NOT NULL), "
    "heads AS (UPDATE forage_experiments e SET position = h.position, digest = h.digest, "
    "last_row = h.last_row FROM unnest(%b::bytea[], %s::int8[], %b::bytea[], %s::int8[]) "
    "AS h (name, position, digest, last_row) WHERE e.name = h.name) "
    "SELECT pg_notify('forage', convert_from(name, 'UTF8')) FROM unnest(%b::bytea[]) AS name"
)
SETTLE = (
    "DELETE FROM forage_due d USING unnest(%b::bytea[], %b::bytea[]) AS s (experiment, name) "
    "WHERE d.experiment = s.experiment AND forage_key(d.decision) = forage_key(s.name) "
    "AND d.due IS NOT NULL"
)
POSTGRES_SETTLED_EARLY = (
    "INSERT INTO forage_due SELECT s.experiment, s.name, NULL "
    "FROM unnest(%b::bytea[], %b::bytea[]) AS s (experiment, name) "
    "WHERE NOT EXISTS (SELECT 1 FROM forage_decisions d "
    "WHERE d.experiment = s.experiment AND forage_key(d.id) = forage_key(s.name)) "
    "ON CONFLICT (experiment, forage_key(decision)) DO NOTHING"
)


async def write(db: Connection, batch: Transaction) -> None:
    marks = [(*name, *values) for name, values in batch.marks.items()]
    # the last row has the number before the next one
    heads = [(name, *head, next(batch.numbers[name]) - 1) for name, head in batch.heads.items()]
    tables = (
        (batch.events, 3),
        (marks, 5),
        (batch.rows, 4),
        ([(*name, count) for name, count in batch.counts.items()], 3),
        ([(*name, due) for name, due in batch.due.items()], 3),
        (heads, 4),
        ([(told(name),) for name in batch.heads], 1),
    )
    await ask(db, WRITE, *chain.from_iterable(columns(rows, many) for rows, many in tables))
    await run(db, SETTLE, batch.settled)
    await run(db, POSTGRES_SETTLED_EARLY, batch.settled)


async def run(db: Connection, query: str, rows: Iterable[SqlRow]) -> None:
    """Run a query whose arguments are the columns of rows; nothing where there are none."""
    if values := columns(rows):
        await ask(db, query, *values)


def _sent(value: object) -> object:
    if isinstance(value, list):
        return [one.encode() if isinstance(one, str) else one for one in value]
    return value.encode() if isinstance(value, str) else value


async def ask(db: Connection, query: str, *values: object, **named: object) -> AsyncCursor[SqlRow]:
    """Run a query with arguments for %s, or by name for %(name)s. A str goes as bytea, as do those
    of a list."""
    sent = {name: _sent(value) for name, value in named.items()} or [*map(_sent, values)]
    return await db.execute(query, sent, binary=True)


async def lock(db: Connection, *experiments: str) -> AsyncCursor[SqlRow]:
    """Lock experiments until the end of the transaction, and ask for the ends of their logs and the
    unix seconds at which it began."""
    names = sorted(experiments)
    await ask(db, MAKE, names)
    return await ask(db, LOCK, names)


def columns(rows: Iterable[SqlRow], least: int = 0) -> list[list[Any]]:
    """Return the columns of rows; of no rows, so many empty ones."""
    return [[*column] for column in zip(*rows, strict=True)] or [[] for _ in range(least)]


def told(name: str) -> str:
    """Return what a notice calls an experiment."""
    return digest(name.encode())
