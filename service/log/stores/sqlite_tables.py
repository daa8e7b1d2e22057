"""What is read from the embedded store, and written into it as it is."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from service.log.stores.base import (
    Instant,
    KeptMark,
    KeptRow,
    Mark,
    Part,
    Record,
    Removed,
    Snapshot,
    Taken,
)
from service.log.stores.sqlite_file import transaction
from service.log.stores.sqlite_keeping import save_snapshot
from service.log.stores.sqlite_rows import select
from service.log.stores.store import START, Cursor, Keyed, Ordered

PAGES: dict[Ordered, tuple[str, Callable[..., Any]]] = {
    "events": (
        "SELECT position, payload FROM events WHERE experiment = ? AND position > ? "
        "ORDER BY position LIMIT ?",
        Record,
    ),
    "decisions": (
        "SELECT number, id, payload FROM decisions "
        "WHERE experiment = ? AND number > ? ORDER BY number LIMIT ?",
        KeptRow,
    ),
    "marks": (
        "SELECT identity, value, position, keep_until FROM marks "
        "WHERE experiment = ? AND identity > ? ORDER BY identity LIMIT ?",
        KeptMark,
    ),
}

# CROSS JOIN: each key is looked up, and the table is not gone through
VALUES: dict[Keyed, tuple[str, Callable[..., Any]]] = {
    "marks": (
        "SELECT identity, value, position FROM (VALUES {}) CROSS JOIN marks "
        "ON experiment = column1 AND identity = column2",
        Mark,
    ),
    "decisions": (
        "SELECT id, payload FROM (VALUES {}) CROSS JOIN decisions "
        "ON experiment = column1 AND id = column2",
        bytes,
    ),
    "blobs": (
        "SELECT key, payload FROM (VALUES {}) CROSS JOIN blobs "
        "ON experiment = column1 AND key = column2",
        bytes,
    ),
}


def page(
    db: sqlite3.Connection, experiment: str, table: Ordered, after: Cursor, limit: int
) -> tuple[list[Any], Cursor]:
    if table == "snapshots":
        return _snapshots(db, experiment), START
    if table == "blobs":
        query = "SELECT key FROM blobs WHERE experiment = ? ORDER BY key"
        return [key for (key,) in db.execute(query, (experiment,))], START
    query, kind = PAGES[table]
    rows = db.execute(query, (experiment, after, limit)).fetchall()
    return [kind(*row) for row in rows], rows[-1][0] if len(rows) == limit else START


def get(
    db: sqlite3.Connection, experiment: str, table: Keyed, keys: Sequence[str]
) -> dict[str, Any]:
    query, kind = VALUES[table]
    rows = select(db, query, [(experiment, key) for key in keys])
    return {key: kind(*values) for key, *values in rows}


def due(db: sqlite3.Connection, experiment: str, now: float, limit: int) -> list[bytes]:
    rows = db.execute(
        # CROSS JOIN keeps this order: the index yields the oldest, LIMIT stops it
        "SELECT payload FROM due CROSS JOIN decisions "
        "ON decisions.experiment = due.experiment AND decisions.id = due.decision "
        "WHERE due.experiment = ? AND due.due <= ? "
        "ORDER BY due.due, due.decision LIMIT ?",
        (experiment, now, limit),
    )
    return [payload for (payload,) in rows]


def head(db: sqlite3.Connection, experiment: str) -> int:
    """The position of the last event there ever was."""
    row = db.execute("SELECT position FROM experiments WHERE name = ?", (experiment,)).fetchone()
    return row[0] if row else 0


def _snapshots(db: sqlite3.Connection, experiment: str) -> list[Snapshot]:
    found = {}
    for table, origin in (("snapshots", False), ("origins", True)):
        query = f"SELECT position, payload FROM {table} WHERE experiment = ?"  # noqa: S608
        for position, payload in db.execute(query, (experiment,)):
            found[position] = Snapshot(position, payload, origin)
    return [found[position] for position in sorted(found, reverse=True)]


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of one commit."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def describe(db: sqlite3.Connection, experiment: str, *, whole: bool) -> Instant:
    def of(query: str) -> list[tuple[Any, ...]]:
        return db.execute(query, (experiment,)).fetchall()

    with _one_moment(db):
        position = head(db, experiment)
        row = of("SELECT number FROM decisions WHERE experiment = ? ORDER BY number DESC LIMIT 1")
        due = (
            # not that one was settled before its row, once the row is there
            of(
                "SELECT decision, due FROM due WHERE experiment = ? AND (due IS NOT NULL OR NOT "
                "EXISTS (SELECT 1 FROM decisions WHERE experiment = due.experiment "
                "AND id = decision))"
            )
            if whole
            else []
        )
        counts = of("SELECT policy, decisions FROM decision_counts WHERE experiment = ?")
        removed = of("SELECT trimmed, erased FROM removed WHERE experiment = ?")
        readers = of("SELECT reader, position, row FROM readers WHERE experiment = ?")
    return Instant(
        position,
        row[0][0] if row else 0,
        dict(due),
        dict(counts),
        Removed(*removed[0]) if removed else Removed(),
        {reader: Taken(*taken) for reader, *taken in readers},
    )


def put(db: sqlite3.Connection, experiment: str, part: Part) -> None:
    with transaction(db):
        _put_log(db, experiment, part)
        for snapshot in part.snapshots:
            save_snapshot(db, experiment, snapshot)
        db.executemany(
            "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)",
            [(experiment, key, payload) for key, payload in part.blobs.items()],
        )
        for reader, taken in part.readers.items():
            db.execute(
                "DELETE FROM readers WHERE experiment = ? AND reader = ?", (experiment, reader)
            )
            if taken is not None:
                values = experiment, reader, taken.position, taken.row
                db.execute("INSERT INTO readers VALUES (?, ?, ?, ?)", values)


def _put_log(db: sqlite3.Connection, experiment: str, part: Part) -> None:
    write = db.executemany
    if part.events or part.position is not None:
        last = max([part.position or 0, *(record.position for record in part.events)])
        db.execute(
            "INSERT INTO experiments VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
            "SET position = max(position, excluded.position)",
            (experiment, last),
        )
    write(
        "INSERT INTO events VALUES (?, ?, ?)",
        [(experiment, record.position, record.payload) for record in part.events],
    )
    write(
        "INSERT INTO decisions (experiment, id, payload) VALUES (?, ?, ?)",
        [(experiment, row.id, row.payload) for row in part.rows],
    )
    write(
        "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",
        [(experiment, m.identity, m.value, m.position, m.keep_until) for m in part.marks],
    )
    write(
        "INSERT INTO due VALUES (?, ?, ?)",
        [(experiment, decision, due) for decision, due in part.due.items()],
    )
    write(
        "INSERT INTO decision_counts VALUES (?, ?, ?)",
        [(experiment, policy, count) for policy, count in part.counts.items()],
    )
    if part.removed != Removed():
        values = experiment, part.removed.trimmed, part.removed.erased
        db.execute("INSERT INTO removed VALUES (?, ?, ?)", values)
