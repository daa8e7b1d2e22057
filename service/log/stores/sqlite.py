"""The embedded store: one SQLite file, which one process writes, or several of one host in turns.

A batch is one transaction (WAL, synchronous=FULL), so an acknowledged write survives kill -9 and
power loss. Reads have a connection and a thread of their own and never block the writer thread.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from service.errors import ConfigurationError, StoreError, StoreUnavailable
from service.log.stores import sqlite_file
from service.log.stores import sqlite_tables as tables
from service.log.stores.base import (
    CommitResult,
    Entry,
    Erasure,
    Item,
    LogSummary,
    Removal,
    StoreSize,
    Trim,
)
from service.log.stores.sqlite_commit import commit
from service.log.stores.sqlite_identity import OpenedFiles
from service.log.stores.sqlite_shared import Turns, expect_local
from service.log.stores.store import SECRET, Cursor, Keyed, KeyedValues, Ordered, Page, Store

T = TypeVar("T")

SQLITE_POLL_S = 0.05  # a look costs 0.1 ms, and a trainer minds no later news
SCRUB_TRIES, SCRUB_WAIT_S = 40, 0.05
URL_PREFIX = "sqlite:///"


class SqliteStore(Store):
    """Store in a file of SQLite.

    readonly   a follower (trainer, audit, export): it needs no lock and sees every commit
    shared     other processes of this host write the file, too
    """

    durability = "An acknowledged write survives kill -9 and power loss of the host."

    def __init__(self, path: Path, *, readonly: bool = False, shared: bool = False) -> None:
        self._path = path.resolve()
        self._readonly, self.shared = readonly, shared
        self._lock: int | None = None
        self._reader = sqlite_file.SqliteThread(self._path, sqlite_file.connect_to_read)
        self._writer = sqlite_file.SqliteThread(self._path, self.connect_to_write)
        self._turns = Turns(self._path) if shared else None
        self._files = OpenedFiles(self._path)

    @classmethod
    def from_url(cls, url: str, *, readonly: bool = False, shared: bool = False) -> Self:
        path = url.removeprefix(URL_PREFIX)
        if not url.startswith(URL_PREFIX) or path in ("", "/", ":memory:") or "?" in path:
            raise ConfigurationError(
                f"FORAGE_STORE: {url!r} names no file; use sqlite:///relative.db or "
                "sqlite:////absolute/path.db"
            )
        return cls(Path(path), readonly=readonly, shared=shared)

    @property
    def path(self) -> Path:
        return self._path

    async def open(self) -> None:
        try:
            if not self._readonly:
                if self.shared:
                    expect_local(self._path)
                hold = partial(sqlite_file.hold, self._path, shared=self.shared)
                self._lock = await asyncio.to_thread(hold)
                await self._writer.open()
            await self._reader.open()
        except BaseException:
            await self.close()
            raise

    def connect_to_write(self, path: Path) -> sqlite3.Connection:
        """Open the connection that writes, and then the files beside it."""
        if self._turns is not None:
            self._turns.open()
        with self._turn():
            db = sqlite_file.connect_to_write(path)
            try:
                self._files.open()
            except BaseException:
                db.close()
                raise
            return db

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()
        self._files.close()
        if self._turns is not None:
            self._turns.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def experiments(self) -> list[str]:
        return await self._reader.run(tables.names)

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        return await self._write(partial(commit, entries=entries))

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not await self._reader.run(partial(_past, positions=positions)):
            left = deadline - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(SQLITE_POLL_S, left))

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return await self._reader.run(lambda db: tables.due(db, experiment, now, limit))

    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        return await self._reader.run(lambda db: tables.page(db, experiment, table, after, limit))

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        if table == SECRET:
            return await self._reader.run(tables.secret)
        return await self._reader.run(lambda db: tables.get(db, experiment, table, keys))

    async def stamps(self) -> dict[str, str]:
        raise ConfigurationError(
            "FORAGE_ROLE: what deciders decide by passes through redis:// or postgresql://, not "
            "through SQLite"
        )

    async def find_damage(self) -> list[str]:
        """Check the form of every page and record (PRAGMA quick_check)."""
        rows = await self._reader.run(lambda db: db.execute("PRAGMA quick_check").fetchall())
        return [text for (text,) in rows if text != "ok"]

    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        return await self._reader.run(lambda db: tables.describe(db, experiment, whole=whole))

    async def measure(self) -> StoreSize:
        return await self._reader.run(tables.measure)

    async def put(self, experiment: str, item: Item) -> None:
        await self._write(lambda db: tables.put(db, experiment, item))

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        if isinstance(what, Trim):
            return await self._write(lambda db: tables.trim(db, experiment, what, limit))
        if isinstance(what, Erasure):
            await self._write(lambda db: tables.erase(db, experiment, what))
        else:
            await self._scrub()
        return 0

    async def _scrub(self) -> None:
        for _ in range(SCRUB_TRIES):  # a reader's page is read in milliseconds, a backup is not
            if await self._write(tables.empty_wal):
                return
            await asyncio.sleep(SCRUB_WAIT_S)
        raise StoreUnavailable(f"{self._path}: a reader holds the log, which has what was deleted")

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        if self._turns is None:  # the lock lets no other process in
            return {process: doing} if seconds > 0 else {}
        turns = self._turns
        return await self._writer.run(lambda _: turns.present(process, doing, seconds))

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._readonly:
            raise StoreError(f"{self._path} is open read-only: only the service writes")
        return await self._writer.run(partial(self._written, work))

    def _written(self, work: Callable[[sqlite3.Connection], T], db: sqlite3.Connection) -> T:
        """Do a piece of work that writes. Raises StoreReplaced where the paths name other files
        than the written ones."""
        with self._turn():
            self._files.expect_known()
            result = work(db)
            self._files.expect()
            return result

    def _turn(self) -> AbstractContextManager[object]:
        return nullcontext() if self._turns is None else self._turns.take()


def _past(db: sqlite3.Connection, positions: Mapping[str, int]) -> bool:
    return any(tables.head(db, name)[0] > position for name, position in positions.items())
