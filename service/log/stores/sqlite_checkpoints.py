"""Writing the write-ahead log back into the database: beside the commits, not among them."""

import asyncio
import logging
import os
import sqlite3
from pathlib import Path

from service.errors import StoreError
from service.log.stores.sqlite_file import Worker, connect_to_write_back

logger = logging.getLogger(__name__)

PAGES = 5_000
"""Written back at once, 20 MB: marks are random keys, so each page is written back less."""

COMMIT_PAGES = 14
"""Of a commit, about; and one of each entry."""


class Checkpoints:
    """Written back among the commits, a few thousand scattered pages held them up for 10 to 15 ms,
    twice a second under load.

    A thread of low priority does it: all that was committed, then what was committed meanwhile.
    The little that is left then is the writer's, for 1 to 3 ms, since the write-ahead log begins
    anew only where all of it is written back.
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
        """And sync, which SQLite does only where nothing is left: the writer would have to."""
        _write_back(db)
        if self._database is None:
            # Never closed: that would drop the locks that SQLite holds on the file (POSIX).
            self._database = os.open(self._path, os.O_RDWR)
        os.fsync(self._database)


def _write_back(db: sqlite3.Connection) -> None:
    """As much as no reader is in the way of."""
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
