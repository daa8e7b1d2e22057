"""Housekeeping of the embedded store: what is needed, what is trimmed, what is erased."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from service.errors import StoreError
from service.log.stores.base import Cut, Erasure, Snapshot
from service.log.stores.sqlite_file import BUSY_S, transaction

END = "\U0010ffff"
"""Behind every identity that begins with what stands before it."""


def save_snapshot(db: sqlite3.Connection, experiment: str, snapshot: Snapshot) -> None:
    """In the caller's transaction."""
    at = experiment, snapshot.position, snapshot.payload
    if snapshot.position < _origin(db, experiment):
        return  # of a process that is behind: it may hold what was erased
    if snapshot.origin:
        db.execute("INSERT OR REPLACE INTO origins VALUES (?, ?, ?)", at)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", at)
    db.execute(
        "DELETE FROM snapshots WHERE experiment = ? AND position NOT IN (SELECT position "
        "FROM snapshots WHERE experiment = ? ORDER BY position DESC LIMIT 2)",
        (experiment, experiment),
    )


def trim(db: sqlite3.Connection, experiment: str, cut: Cut, limit: int) -> int:
    with transaction(db):
        _check_origin(db, experiment, cut.position)
        count: int = db.execute(
            "DELETE FROM events WHERE experiment = ? AND position IN (SELECT position FROM events "
            "WHERE experiment = ? AND position <= ? ORDER BY position LIMIT ?)",
            (experiment, experiment, cut.position, limit),
        ).rowcount
        count += _trim_rows(db, experiment, cut, limit)
        count += db.execute(
            "DELETE FROM marks WHERE experiment = ? AND identity IN (SELECT identity FROM marks "
            "WHERE experiment = ? AND keep_until < ? LIMIT ?)",
            (experiment, experiment, cut.marks_before, limit),
        ).rowcount
    return count


def _trim_rows(db: sqlite3.Connection, experiment: str, cut: Cut, limit: int) -> int:
    """Of rows in the order they came, those before the first that is due, or all."""
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


@contextmanager
def _numbers_given_once(db: sqlite3.Connection) -> Iterator[None]:
    """Whoever reads rows goes on from a number: where the row of the highest one goes, a row of no
    experiment keeps its number, or SQLite would give it to the next."""
    query = "SELECT coalesce(max(number), 0) FROM decisions"
    (last,) = db.execute(query).fetchone()
    yield
    if db.execute(query).fetchone() != (last,):
        db.execute("INSERT OR REPLACE INTO decisions VALUES (?, '', '', x'')", (last,))


def _forget_due(db: sqlite3.Connection, experiment: str, decisions: Iterable[str]) -> None:
    """Also that they were settled before their row came."""
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
    """Its position, 0 where there is none."""
    query = "SELECT position FROM origins WHERE experiment = ?"
    (position,) = db.execute(query, (experiment,)).fetchone() or (0,)
    return int(position)


def _check_origin(db: sqlite3.Connection, experiment: str, position: int) -> None:
    origin = _origin(db, experiment)
    if position > origin:
        raise StoreError(
            f"experiment {experiment}: the origin of replay is at position {origin}: nothing up "
            f"to position {position} can be taken out"
        )


def erase(db: sqlite3.Connection, erasure: Erasure) -> None:
    name = erasure.experiment
    with transaction(db):
        _check_origin(db, name, erasure.origin)
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
            [(name, prefix, prefix + END) for prefix in erasure.forget],
        )
        db.execute(
            "DELETE FROM snapshots WHERE experiment = ? AND position < ?", (name, erasure.origin)
        )
        db.executemany(
            "DELETE FROM blobs WHERE experiment = ? AND key = ?",
            [(name, key) for key in erasure.blobs],
        )
        _count(db, name, erased=max(rows, 0))


def empty_wal(db: sqlite3.Connection) -> bool:
    """Write back and cut to nothing the write-ahead log, which holds earlier contents of pages.
    False: somebody is reading it. That is not waited for here: commits wait behind."""
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_S)}")
    return not busy
