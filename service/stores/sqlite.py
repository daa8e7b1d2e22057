"""The embedded store: one SQLite file, one writer thread, one service process.

A batch is one transaction (WAL, synchronous=FULL), so what was acknowledged survives kill -9 and
power loss. Reads have a connection and a thread of their own and never block the writer.
"""

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

from service.errors import ConfigurationError, StoreError, StoreUnavailable
from service.stores import sqlite_copy as copying
from service.stores import sqlite_file
from service.stores import sqlite_keeping as keeping
from service.stores.base import (
    Activation,
    Append,
    Appended,
    DecisionRow,
    Entry,
    Kept,
    KeptRow,
    Known,
    Mark,
    Outcome,
    Record,
    Snapshot,
)
from service.stores.keeping import Cut, Erasure, Instant, KeptMark, Part, Removed, Taken
from service.stores.sqlite_checkpoints import Checkpoints

T = TypeVar("T")
Identity = tuple[str, str]
"""Of a mark or a decision: the experiment, and its own name."""

POLL_S = 0.05  # a look costs 0.1 ms, and a trainer minds no later news
SCRUB_TRIES, SCRUB_WAIT_S = 40, 0.05
PREFIX = "sqlite:///"


class SqliteStore:
    """readonly: a follower (trainer, audit, export). It needs no lock and sees every commit."""

    shared = False
    durability = "An acknowledged write survives kill -9 and power loss of the host."

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path.resolve()
        self._readonly = readonly
        self._lock: int | None = None
        self._reader = sqlite_file.Worker(self._path, sqlite_file.connect_to_read)
        self._writer = sqlite_file.Worker(self._path, sqlite_file.connect_to_write)
        self._checkpoints = Checkpoints(self._path, self._writer)

    @classmethod
    def from_url(cls, url: str, *, readonly: bool = False) -> Self:
        path = url.removeprefix(PREFIX)
        if not url.startswith(PREFIX) or path in ("", "/", ":memory:") or "?" in path:
            raise ConfigurationError(
                f"FORAGE_STORE: {url!r} names no file; use sqlite:///relative.db or "
                "sqlite:////absolute/path.db"
            )
        return cls(Path(path), readonly=readonly)

    @property
    def path(self) -> Path:
        return self._path

    async def open(self) -> None:
        try:
            if not self._readonly:
                self._lock = await asyncio.to_thread(sqlite_file.hold, self._path)
                await self._writer.open()
            await self._reader.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._reader.close()
        await self._checkpoints.close()
        await self._writer.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def experiments(self) -> list[str]:
        rows = await self._reader.run(_rows("SELECT name FROM experiments ORDER BY name"))
        return [name for (name,) in rows]

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        outcomes = await self._write(partial(_commit, entries=entries))
        self._checkpoints.committed(len(entries))
        return outcomes

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        rows = await self._reader.run(
            _rows(
                "SELECT position, payload FROM events WHERE experiment = ? AND position > ? "
                "ORDER BY position LIMIT ?",
                experiment,
                after,
                limit,
            )
        )
        return [Record(position, payload) for position, payload in rows]

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not await self._reader.run(partial(_past, positions=positions)):
            left = deadline - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(POLL_S, left))

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        return await self._reader.run(lambda db: _known(db, experiment, identities))

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        return await self._payload(
            "SELECT payload FROM decisions WHERE experiment = ? AND id = ?", experiment, decision
        )

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        rows = await self._reader.run(
            _rows(
                "SELECT number, id, payload FROM decisions "
                "WHERE experiment = ? AND number > ? ORDER BY number LIMIT ?",
                experiment,
                after,
                limit,
            )
        )
        return [KeptRow(*row) for row in rows]

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        rows = await self._reader.run(
            _rows(
                # CROSS JOIN keeps this order: the index yields the oldest, LIMIT stops it
                "SELECT payload FROM due CROSS JOIN decisions "
                "ON decisions.experiment = due.experiment AND decisions.id = due.decision "
                "WHERE due.experiment = ? AND due.due <= ? "
                "ORDER BY due.due, due.decision LIMIT ?",
                experiment,
                now,
                limit,
            )
        )
        return [payload for (payload,) in rows]

    async def decision_counts(self, experiment: str) -> dict[str, int]:
        rows = await self._reader.run(
            _rows("SELECT policy, decisions FROM decision_counts WHERE experiment = ?", experiment)
        )
        return dict(rows)

    async def save_snapshot(self, experiment: str, snapshot: Snapshot) -> None:
        await self._write(partial(keeping.save_snapshot, experiment=experiment, snapshot=snapshot))

    async def snapshots(self, experiment: str) -> list[Snapshot]:
        return await self._reader.run(partial(keeping.snapshots, experiment=experiment))

    async def put_blob(self, experiment: str, key: str, payload: bytes) -> None:
        await self._write(
            _rows("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", experiment, key, payload)
        )

    async def blob(self, experiment: str, key: str) -> bytes | None:
        return await self._payload(
            "SELECT payload FROM blobs WHERE experiment = ? AND key = ?", experiment, key
        )

    async def secret(self) -> bytes:
        worker = self._reader if self._readonly else self._writer
        create = not self._readonly
        return await worker.run(lambda _: sqlite_file.secret(self._path, create=create))

    # -- housekeeping --------------------------------------------------------------------------

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        return {process: doing} if seconds > 0 else {}  # the lock lets no other process in

    async def take_note(self, experiment: str, reader: str, taken: Taken | None) -> None:
        await self._write(
            partial(keeping.take_note, experiment=experiment, reader=reader, taken=taken)
        )

    async def readers(self, experiment: str) -> dict[str, Taken]:
        return await self._reader.run(partial(keeping.readers, experiment=experiment))

    async def trim(self, experiment: str, cut: Cut, limit: int) -> int:
        return await self._write(partial(keeping.trim, experiment=experiment, cut=cut, limit=limit))

    async def removed(self, experiment: str) -> Removed:
        return await self._reader.run(partial(keeping.removed, experiment=experiment))

    async def overwrite_marks(
        self, experiment: str, marks: Mapping[str, str], keep_until: float
    ) -> None:
        await self._write(
            partial(
                keeping.overwrite_marks, experiment=experiment, marks=marks, keep_until=keep_until
            )
        )

    async def erase(self, erasure: Erasure) -> None:
        await self._write(partial(keeping.erase, erasure=erasure))

    async def forget_blobs(self, experiment: str, keys: Sequence[str]) -> None:
        await self._write(partial(keeping.forget_blobs, experiment=experiment, keys=keys))

    async def scrub(self) -> None:
        for _ in range(SCRUB_TRIES):  # a reader's page is read in milliseconds, a backup is not
            if await self._write(keeping.empty_wal):
                return
            await asyncio.sleep(SCRUB_WAIT_S)
        raise StoreUnavailable(f"{self._path}: a reader holds the log, which has what was deleted")

    # -- copies --------------------------------------------------------------------------------

    async def instant(self, experiment: str) -> Instant:
        return await self._reader.run(partial(copying.instant, experiment=experiment))

    async def list_marks(
        self, experiment: str, cursor: str, limit: int
    ) -> tuple[list[KeptMark], str]:
        return await self._reader.run(
            partial(copying.list_marks, experiment=experiment, cursor=cursor, limit=limit)
        )

    async def blob_keys(self, experiment: str) -> list[str]:
        return await self._reader.run(partial(copying.blob_keys, experiment=experiment))

    async def load(self, experiment: str, part: Part) -> None:
        await self._write(partial(copying.load, experiment=experiment, part=part))

    async def adopt_secret(self, secret: bytes) -> None:
        await self._write(lambda _: copying.adopt_secret(self._path, secret))

    # ------------------------------------------------------------------------------------------

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._readonly:
            raise StoreError(f"{self._path} is open read-only: only the service writes")
        return await self._writer.run(work)

    async def _payload(self, query: str, *values: str) -> bytes | None:
        rows = await self._reader.run(_rows(query, *values))
        return rows[0][0] if rows else None


def _rows(
    query: str, *values: str | float | bytes
) -> Callable[[sqlite3.Connection], list[tuple[Any, ...]]]:
    return lambda db: db.execute(query, values).fetchall()


def _past(db: sqlite3.Connection, positions: Mapping[str, int]) -> bool:
    return any(_head(db, experiment) > position for experiment, position in positions.items())


def _head(db: sqlite3.Connection, experiment: str) -> int:
    row = db.execute("SELECT position FROM experiments WHERE name = ?", (experiment,)).fetchone()
    return row[0] if row else 0


def _known(db: sqlite3.Connection, experiment: str, identities: Iterable[str]) -> dict[str, Mark]:
    found = _marks(db, [(experiment, identity) for identity in identities])
    return {identity: mark for (_, identity), mark in found.items()}


def _marks(db: sqlite3.Connection, identities: Sequence[Identity]) -> dict[Identity, Mark]:
    rows = _select(
        db,
        "SELECT experiment, identity, value, position FROM (VALUES {}) CROSS JOIN marks "
        "ON experiment = column1 AND identity = column2",
        identities,
    )
    return {(experiment, identity): Mark(*mark) for experiment, identity, *mark in rows}


def _commit(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[Outcome]:
    try:
        with sqlite_file.transaction(db):
            return _write(db, entries, {})
    except _SomeAreKept:
        with sqlite_file.transaction(db):
            return _write(db, entries, _kept(db, entries))


def _write(
    db: sqlite3.Connection, entries: Sequence[Entry], kept: Mapping[Identity, bytes]
) -> list[Outcome]:
    if not entries:
        db.execute(f"PRAGMA user_version = {sqlite_file.LAYOUT}")  # a write, of what is there
    marks: list[Identity] = []
    for entry in entries:
        if isinstance(entry, Append):
            marks += [(entry.experiment, identity) for identity in entry.marks]
        elif isinstance(entry, Activation):
            marks.append((entry.experiment, entry.mark))
    batch = _Batch(db, _marks(db, marks), kept)
    outcomes = [batch.take(entry) for entry in entries]
    batch.write()
    return outcomes


def _kept(db: sqlite3.Connection, entries: Sequence[Entry]) -> dict[Identity, bytes]:
    """Payloads of those decisions that are in the log already."""
    rows = _select(
        db,
        "SELECT experiment, id, payload FROM (VALUES {}) CROSS JOIN decisions "
        "ON experiment = column1 AND id = column2",
        [(entry.experiment, entry.id) for entry in entries if isinstance(entry, DecisionRow)],
    )
    return {(experiment, id_): payload for experiment, id_, payload in rows}


class _SomeAreKept(Exception):
    """Decisions of a batch are in the log already: which ones has to be looked up first."""


class _Batch:
    """What one transaction adds: decided entry by entry, written table by table.

    marks   those of the entries' identities that are known; here, those of this batch too
    kept    payloads of the decisions that the log has, and of this batch's
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        marks: dict[Identity, Mark],
        kept: Mapping[Identity, bytes],
    ) -> None:
        self._db, self._known, self._kept = db, marks, dict(kept)
        self._heads: dict[str, int] = {}
        self._decisions: list[tuple[str, str, bytes]] = []
        self._events: list[tuple[str, int, bytes]] = []
        self._marks: list[tuple[str, str, str, int, float | None]] = []
        self._settled: list[Identity] = []
        self._due: list[tuple[str, str, float]] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def take(self, entry: Entry) -> Outcome:
        if isinstance(entry, Append):
            return self.append(entry)
        return self.keep(entry) if isinstance(entry, DecisionRow) else self.activate(entry)

    def activate(self, entry: Activation) -> Outcome:
        key = entry.experiment, entry.mark
        known = self._known.get(key)
        if known:
            return Known({entry.mark: known})
        self._known[key] = Mark("", 0)
        self._marks.append((*key, "", 0, entry.keep_until))
        if entry.due is not None:
            self._due.append((entry.experiment, entry.decision, entry.due))
        return Kept()

    def append(self, entry: Append) -> Outcome:
        experiment, marks = entry.experiment, self._known
        known = {
            identity: marks[experiment, identity]
            for identity in entry.marks
            if (experiment, identity) in marks
        }
        if len(known) == len(entry.marks) and entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        if known:
            return Known(known)
        if experiment not in self._heads:
            self._heads[experiment] = _head(self._db, experiment)
        self._heads[experiment] += 1
        position = self._heads[experiment]
        self._events.append((experiment, position, entry.payload))
        for identity, value in entry.marks.items():
            marks[experiment, identity] = Mark(value, position)
            self._marks.append((experiment, identity, value, position, entry.keep_until))
        if entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        return Appended(position)

    def keep(self, row: DecisionRow) -> Outcome:
        key = row.experiment, row.id
        if key in self._kept:
            return Kept(self._kept[key])
        self._kept[key] = row.payload
        self._decisions.append((*key, row.payload))
        self._counts[row.experiment, row.policy] += 1
        if row.due is not None:
            self._due.append((*key, row.due))
        return Kept()

    def write(self) -> None:
        """Raises _SomeAreKept."""
        db = self._db
        before = db.total_changes
        _run(
            db,
            "INSERT OR IGNORE INTO decisions (experiment, id, payload) VALUES {}",
            self._decisions,
        )
        if db.total_changes - before < len(self._decisions):
            raise _SomeAreKept
        _run(db, "INSERT INTO events VALUES {}", self._events)
        _run(db, "INSERT INTO marks VALUES {}", self._marks)
        _run(db, "INSERT OR REPLACE INTO experiments VALUES {}", [*self._heads.items()])
        _run(db, "INSERT OR IGNORE INTO due VALUES {}", self._due)
        self._settle()
        _run(
            db,
            "INSERT INTO decision_counts VALUES {} ON CONFLICT (experiment, policy) "
            "DO UPDATE SET decisions = decisions + excluded.decisions",
            [(*key, count) for key, count in self._counts.items()],
        )

    def _settle(self) -> None:
        """What is settled is not due; nor will it be, where its row comes later."""
        by_experiment: dict[str, list[str]] = {}
        for experiment, decision in dict.fromkeys(self._settled):
            by_experiment.setdefault(experiment, []).append(decision)
        for experiment, decisions in by_experiment.items():
            for start in range(0, len(decisions), ROWS):
                self._settle_some(experiment, decisions[start : start + ROWS])

    def _settle_some(self, experiment: str, decisions: list[str]) -> None:
        places = ", ".join("?" * len(decisions))
        were_due = self._db.execute(
            # +due: else it would be looked through by time
            f"DELETE FROM due WHERE experiment = ? AND +due IS NOT NULL "  # noqa: S608
            f"AND decision IN ({places})",
            [experiment, *decisions],
        ).rowcount
        if were_due < len(decisions):
            _run(
                self._db,
                "INSERT OR IGNORE INTO due SELECT column1, column2, NULL FROM (VALUES {}) WHERE "
                "NOT EXISTS (SELECT 1 FROM decisions WHERE experiment = column1 AND id = column2)",
                [(experiment, decision) for decision in decisions],
            )


ROWS = 64
"""Rows of one statement, at most. A thread lets go of the interpreter at each statement, and on a
busy core waits to have it back: with a statement a row that was most of a commit."""


def _select(
    db: sqlite3.Connection, query: str, values: Sequence[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    return [row for cursor in _statements(db, query, values) for row in cursor]


def _run(db: sqlite3.Connection, query: str, values: Sequence[tuple[Any, ...]]) -> None:
    for _ in _statements(db, query, values):
        pass


def _statements(
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
