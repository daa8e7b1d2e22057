"""Checkpoints: the write-ahead log is written back beside the commits, not by them."""

import asyncio
import logging
import os
import sqlite3
from pathlib import Path

from service.errors import StoreError
from service.log.stores.sqlite_file import Worker, connect_to_write_back

logger = logging.getLogger(__name__)

PAGES = 5_000
"""Of one checkpoint, 20 MB: marks are random keys, so pages are written back less often."""

COMMIT_PAGES = 14
"""Of a commit, about, beside one page for each entry."""


class Checkpoints:
    """By the writer, a few thousand scattered pages delayed commits by 10 to 15 ms, twice a second
    under load.

    Here a thread of low priority writes them back, then those of the meantime. The writer does the
    rest in 1 to 3 ms, since the write-ahead log restarts only once all of it is written back.
    """

    def __init__(self, path: Path, writer: Worker) -> None:
        self._path, self._writer = path, writer
        self._aside = Worker(path, connect_to_write_back)
        self._opened = False
        self._database: int | None = None
        self._pages = 0
        self._running: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """After the one under way."""
        if self._running is not None:
            await self._running
        await self._aside.close()
        self._opened = False

    def committed(self, entries: int) -> None:
        self._pages += COMMIT_PAGES + entries
        if self._pages >= PAGES and self._running is None:
            self._pages = 0
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            if not self._opened:
                await self._aside.open()
                self._opened = True
            await self._aside.run(self._write_back)
            await self._aside.run(self._write_back)
            await self._writer.run(_write_back)
        except StoreError as fault:
            logger.warning("the write-ahead log was not written back: %s", fault)
        finally:
            self._running = None

    def _write_back(self, db: sqlite3.Connection) -> None:
        """And sync: SQLite leaves that to whoever writes the last page, the writer."""
        _write_back(db)
        if self._database is None:
            # Never closed: that would drop the locks that SQLite holds on the file (POSIX).
            self._database = os.open(self._path, os.O_RDWR)
        os.fsync(self._database)


def _write_back(db: sqlite3.Connection) -> None:
    """As far as no reader is in the way."""
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
