"""The tables of the embedded store: reads, single writes, trims and erasures."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any

from service.errors import StoreError
from service.log.stores.base import (
    SAMPLE,
    Blob,
    Erasure,
    Item,
    KeptMark,
    KeptRow,
    LogEnd,
    LogSummary,
    Mark,
    Marks,
    Published,
    ReaderPosition,
    ReaderState,
    Record,
    Removed,
    Secret,
    Snapshot,
    StoreSize,
    Trim,
    expect_origin,
    shared_out,
)
from service.log.stores.sqlite_file import BUSY_S, transaction
from service.log.stores.store import SECRET, START, Cursor, Keyed, KeyedValues, Ordered, Page

SqlRow = tuple[Any, ...]

ROWS_PER_STATEMENT = 64
"""Most rows of one statement. Each statement releases the interpreter, and a thread on a busy core
waits to get it back: with a statement for each row that was most of a commit."""

LAST_CHARACTER = "\U0010ffff"
"""Character that follows every one of an identity: prefix + END is behind all that begin with the
prefix."""

SQLITE_PAGES: dict[Ordered, tuple[str, Callable[..., object]]] = {
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

# CROSS JOIN: each key is looked up, and the table is not scanned
SQLITE_VALUES: dict[Keyed, tuple[str, Callable[..., object]]] = {
    "marks": (
        "SELECT experiment, identity, value, position FROM (VALUES {}) CROSS JOIN marks "
        "ON experiment = column1 AND identity = column2",
        Mark,
    ),
    "decisions": (
        "SELECT experiment, id, payload FROM (VALUES {}) CROSS JOIN decisions "
        "ON experiment = column1 AND id = column2",
        bytes,
    ),
    "blobs": (
        "SELECT experiment, key, payload FROM (VALUES {}) CROSS JOIN blobs "
        "ON experiment = column1 AND key = column2",
        bytes,
    ),
}

LAST_ROW = "SELECT number FROM decisions WHERE experiment = ? ORDER BY number DESC LIMIT 1"
# A decision settled before its row came is listed until its row is there
SQLITE_WAITING = (
    "SELECT decision, due FROM due WHERE experiment = ? AND (due IS NOT NULL OR NOT EXISTS "
    "(SELECT 1 FROM decisions WHERE experiment = due.experiment AND id = decision))"
)


# -- statements of many rows -----------------------------------------------------------------------


def run(db: sqlite3.Connection, query: str, values: Sequence[SqlRow]) -> None:
    """Run a query whose {} stands for rows of values."""
    for _ in _statements(db, query, values):
        pass


def look_up(
    db: sqlite3.Connection, table: Keyed, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Any]:
    """Return values by experiment and key."""
    query, kind = SQLITE_VALUES[table]
    rows = chain.from_iterable(_statements(db, query, keys))
    return {(experiment, key): kind(*values) for experiment, key, *values in rows}


def _statements(
    db: sqlite3.Connection, query: str, values: Sequence[SqlRow]
) -> Iterator[sqlite3.Cursor]:
    for start in range(0, len(values), ROWS_PER_STATEMENT):
        rows = values[start : start + ROWS_PER_STATEMENT]
        yield db.execute(_filled(query, len(rows), len(rows[0])), [*chain.from_iterable(rows)])


@cache
def _filled(query: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return query.format(", ".join([row] * rows))


# -- read ------------------------------------------------------------------------------------------


def names(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM experiments ORDER BY name")]


def head(db: sqlite3.Connection, experiment: str) -> tuple[int, str]:
    """Return position and digest of the last event ever appended."""
    query = "SELECT position, digest FROM experiments WHERE name = ?"
    position, digest = db.execute(query, (experiment,)).fetchone() or (0, "")
    return int(position), str(digest)


def last_number(db: sqlite3.Connection) -> int:
    """Return the highest number of a decision row of any experiment."""
    return _number(db, "SELECT coalesce(max(number), 0) FROM decisions")


def _number(db: sqlite3.Connection, query: str, *values: object) -> int:
    """Return the number that a query finds; 0 where it finds no row."""
    (number,) = db.execute(query, values).fetchone() or (0,)
    return int(number)


def page(
    db: sqlite3.Connection, experiment: str, table: Ordered, after: Cursor, limit: int
) -> Page:
    if table == "snapshots":
        return _snapshots(db, experiment), START
    if table == "blobs":
        query = "SELECT key FROM blobs WHERE experiment = ? ORDER BY key"
        return [key for (key,) in db.execute(query, (experiment,))], START
    query, kind = SQLITE_PAGES[table]
    rows = db.execute(query, (experiment, after, limit)).fetchall()
    return [kind(*row) for row in rows], rows[-1][0] if len(rows) == limit else START


def get(db: sqlite3.Connection, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
    found = look_up(db, table, [(experiment, key) for key in keys])
    return {key: value for (_, key), value in found.items()}


def secret(db: sqlite3.Connection) -> KeyedValues:
    row = db.execute("SELECT content FROM secret").fetchone()
    return {SECRET: row[0]} if row else {}


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


def _snapshots(db: sqlite3.Connection, experiment: str) -> list[Snapshot]:
    found = {}
    for table, origin in (("snapshots", False), ("origins", True)):
        query = f"SELECT position, payload FROM {table} WHERE experiment = ?"  # noqa: S608
        for position, payload in db.execute(query, (experiment,)):
            found[position] = Snapshot(position, payload, origin)
    return [found[position] for position in sorted(found, reverse=True)]


def describe(db: sqlite3.Connection, experiment: str, *, whole: bool) -> LogSummary:
    def rows(query: str) -> list[SqlRow]:
        return db.execute(query, (experiment,)).fetchall()

    db.execute("BEGIN")  # all of one commit
    try:
        position, digest = head(db, experiment)
        row = _number(db, LAST_ROW, experiment)
        waiting = rows(SQLITE_WAITING) if whole else []
        counts = rows("SELECT series, decisions FROM decision_counts WHERE experiment = ?")
        removed = rows("SELECT trimmed, erased FROM removed WHERE experiment = ?")
        readers = rows("SELECT reader, position, row FROM readers WHERE experiment = ?")
    finally:
        db.execute("ROLLBACK")
    return LogSummary(
        position,
        row,
        dict(waiting),
        dict(counts),
        Removed(*removed[0]) if removed else Removed(),
        {reader: ReaderPosition(*taken) for reader, *taken in readers},
        digest,
    )


USUAL_ROW = (  # in the order of their numbers, backwards: the newest
    "SELECT coalesce(avg(length(payload)), 0) FROM (SELECT payload FROM decisions "
    "WHERE experiment = ? ORDER BY number DESC LIMIT ?)"
)
USUAL_EVENT = (
    "SELECT coalesce(avg(length(payload)), 0) FROM (SELECT payload FROM events "
    "WHERE experiment = ? ORDER BY position DESC LIMIT ?)"
)
FIRST_EVENT = "SELECT coalesce(min(position), 0) FROM events WHERE experiment = ?"


def measure(db: sqlite3.Connection) -> StoreSize:
    """Measure the pages in use, without the contents of snapshots and artifacts, shared out by
    payloads. The file may grow by what is free in its file system."""

    def one(query: str, *values: object) -> float:
        return float(db.execute(query, values).fetchone()[0])

    page, pages, free = (
        int(one(f"PRAGMA {name}")) for name in ("page_size", "page_count", "freelist_count")
    )
    beside = sum(
        int(one(f"SELECT coalesce(sum(length(payload)), 0) FROM {table}"))  # noqa: S608
        for table in ("snapshots", "origins", "blobs")
    )
    payloads = {}
    for name in names(db):
        events = head(db, name)[0] - one(FIRST_EVENT, name) + 1
        rows = describe(db, name, whole=False).rows
        payloads[name] = rows * one(USUAL_ROW, name, SAMPLE) + events * one(
            USUAL_EVENT, name, SAMPLE
        )
    used = (pages - free) * page
    _, _, path = db.execute("PRAGMA database_list").fetchone()
    disk = os.statvfs(path)
    limit = pages * page + disk.f_bavail * disk.f_frsize
    return StoreSize(used, limit, shared_out(max(used - beside, 0), payloads))


# -- write -----------------------------------------------------------------------------------------


def put(db: sqlite3.Connection, experiment: str, item: Item) -> None:
    with transaction(db):
        match item:
            case Snapshot():
                _save_snapshot(db, experiment, item)
            case Blob(key, payload):
                query = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)"
                db.execute(query, (experiment, key, payload))
            case ReaderState(name, taken):
                if taken is None:
                    query = "DELETE FROM readers WHERE experiment = ? AND reader = ?"
                    db.execute(query, (experiment, name))
                else:
                    query = "INSERT OR REPLACE INTO readers VALUES (?, ?, ?, ?)"
                    db.execute(query, (experiment, name, taken.position, taken.row))
            case Marks(marks):
                query = "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)"
                db.executemany(
                    query,
                    [(experiment, m.identity, m.value, m.position, m.keep_until) for m in marks],
                )
            case LogEnd(position, digest):
                query = "INSERT OR REPLACE INTO experiments VALUES (?, ?, ?)"
                db.execute(query, (experiment, position, digest))
            case Published():
                raise StoreError("SQLite takes no publications")
            case Secret(content):
                if secret(db):
                    raise StoreError("the store has a secret of its own already")
                db.execute("INSERT INTO secret VALUES (?)", (content,))


def _save_snapshot(db: sqlite3.Connection, experiment: str, snapshot: Snapshot) -> None:
    values = experiment, snapshot.position, snapshot.payload
    if snapshot.position < _origin(db, experiment):
        return  # of a process that is behind: it may hold what was erased
    if snapshot.origin:
        db.execute("INSERT OR REPLACE INTO origins VALUES (?, ?, ?)", values)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", values)
    db.execute(
        "DELETE FROM snapshots WHERE experiment = ? AND position NOT IN (SELECT position "
        "FROM snapshots WHERE experiment = ? ORDER BY position DESC LIMIT 2)",
        (experiment, experiment),
    )


# -- trim and erase --------------------------------------------------------------------------------


def trim(db: sqlite3.Connection, experiment: str, cut: Trim, limit: int) -> int:
    with transaction(db):
        expect_origin(experiment, _origin(db, experiment), cut.position)
        events = db.execute(
            "DELETE FROM events WHERE experiment = ? AND position IN (SELECT position FROM events "
            "WHERE experiment = ? AND position <= ? ORDER BY position LIMIT ?)",
            (experiment, experiment, cut.position, limit),
        ).rowcount
        rows = _trim_rows(db, experiment, cut, limit)
        marks = db.execute(
            "DELETE FROM marks WHERE experiment = ? AND identity IN (SELECT identity FROM marks "
            "WHERE experiment = ? AND keep_until < ? LIMIT ?)",
            (experiment, experiment, cut.marks_before, limit),
        ).rowcount
    return events + rows + marks


def _trim_rows(db: sqlite3.Connection, experiment: str, cut: Trim, limit: int) -> int:
    rows = db.execute(
        "SELECT number, id, (SELECT due FROM due WHERE due.experiment = decisions.experiment "
        "AND decision = id) FROM decisions "
        "WHERE experiment = ? AND number <= ? ORDER BY number LIMIT ?",
        (experiment, cut.row, limit),
    )
    gone = []
    for number, decision, due in rows:
        if due is not None and cut.settles:
            break
        gone.append((number, decision))
    with _numbers_given_once(db):
        db.executemany("DELETE FROM decisions WHERE number = ?", [(number,) for number, _ in gone])
    _forget_due(db, experiment, [decision for _, decision in gone])
    _count(db, experiment, trimmed=len(gone))
    return len(gone)


def erase(db: sqlite3.Connection, name: str, erasure: Erasure) -> None:
    with transaction(db):
        expect_origin(name, _origin(db, name), erasure.origin)
        db.executemany(
            "UPDATE events SET payload = ? WHERE experiment = ? AND position = ?",
            [(payload, name, position) for position, payload in erasure.events.items()],
        )
        with _numbers_given_once(db):
            rows = db.executemany(
                "DELETE FROM decisions WHERE experiment = ? AND id = ?",
                [(name, decision) for decision in erasure.decisions],
            ).rowcount
        _forget_due(db, name, erasure.decisions)
        db.executemany(
            "DELETE FROM marks WHERE experiment = ? AND identity >= ? AND identity < ?",
            [(name, prefix, prefix + LAST_CHARACTER) for prefix in erasure.forget],
        )
        db.execute(
            "DELETE FROM snapshots WHERE experiment = ? AND position < ?", (name, erasure.origin)
        )
        db.executemany(
            "DELETE FROM blobs WHERE experiment = ? AND key = ?",
            [(name, key) for key in erasure.blobs],
        )
        _count(db, name, erased=max(rows, 0))


@contextmanager
def _numbers_given_once(db: sqlite3.Connection) -> Iterator[None]:
    """Keep the highest number of a row in use: readers go on from a number, and SQLite would give
    it again once its row is gone. A row of no experiment keeps it."""
    last = last_number(db)
    yield
    if last_number(db) != last:
        db.execute("INSERT OR REPLACE INTO decisions VALUES (?, '', '', x'')", (last,))


def _forget_due(db: sqlite3.Connection, experiment: str, decisions: Iterable[str]) -> None:
    """Delete also the notes that they were settled before their row came."""
    values = [(experiment, decision) for decision in decisions]
    db.executemany("DELETE FROM due WHERE experiment = ? AND decision = ?", values)


def _count(db: sqlite3.Connection, experiment: str, trimmed: int = 0, erased: int = 0) -> None:
    if trimmed or erased:
        db.execute(
            "INSERT INTO removed VALUES (?, ?, ?) ON CONFLICT (experiment) DO UPDATE SET "
            "trimmed = trimmed + excluded.trimmed, erased = erased + excluded.erased",
            (experiment, trimmed, erased),
        )


def _origin(db: sqlite3.Connection, experiment: str) -> int:
    return _number(db, "SELECT position FROM origins WHERE experiment = ?", experiment)


def empty_wal(db: sqlite3.Connection) -> bool:
    """Write back and truncate the write-ahead log, which holds earlier contents of pages. False: a
    reader is in the way; commits would wait behind it."""
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_S)}")
    return not busy
