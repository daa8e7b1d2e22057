"""forage backup, forage restore: an SQLite store copied into one file while a service writes it,
and back."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from service.errors import ConfigurationError, Damaged
from service.log.reading import Progress, Say, opened, readable_store
from service.log.stores import Store, open_store, sqlite_file
from service.log.stores.sqlite import SqliteStore
from service.offline.copying import Copied, contents
from service.security.files import make_private

PAGES_PER_STEP = 256
"""Pages of 4 KiB between two reports of progress."""


def backup(url: str, path: Path, say: Say | None = None) -> list[Copied]:
    """Copy an SQLite store into a new file. A service may go on writing.

    Raises ConfigurationError for another store and where the file exists already, StoreError
    where the store cannot be copied; then no file is left behind.
    """
    store = _file_store(readable_store(url))
    return _copy(store.path, path.absolute(), Progress(say))


def restore(path: Path, url: str, say: Say | None = None) -> list[Copied]:
    """Copy a backup to where no store is yet. Forage never overwrites a store.

    Raises ConfigurationError where a store exists already or there is no backup, StoreLocked where
    a service runs, StoreError where the backup cannot be copied.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist")
    store = _file_store(open_store(url))
    lock = sqlite_file.hold(store.path)
    try:
        return _copy(path.absolute(), store.path, Progress(say))
    finally:
        os.close(lock)


def _file_store(store: Store) -> SqliteStore:
    if isinstance(store, SqliteStore):
        return store
    raise ConfigurationError(
        "FORAGE_STORE: backups are of sqlite:/// stores; Redis and PostgreSQL make their own, RDB "
        "and AOF files and pg_dump, and `forage copy` moves a log between stores "
        "(docs/operations.md#backup-and-restore)"
    )


def _copy(source: Path, target: Path, progress: Progress) -> list[Copied]:
    _expect_free(target)
    with _draft(target) as draft:
        _image(source, draft, progress)
        progress.tell(f"checking {target.name}")
        _seal(draft)
        _expect_free(target)
        draft.rename(target)
        sqlite_file.sync_folder(target.parent)
    return asyncio.run(_contents(target))


async def _contents(path: Path) -> list[Copied]:
    async with opened(SqliteStore(path, readonly=True)) as store:
        return await contents(store)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield the place of a copy for `path`. A copy that is not moved to `path` is deleted."""
    with (
        sqlite_file.ours(path),
        TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder,
    ):
        yield Path(folder) / path.name


def _image(source: Path, target: Path, progress: Progress) -> None:
    """Copy the database as of one commit.

    One read transaction covers all pages: in WAL mode it delays nobody, and without it SQLite would
    start again after each commit.
    """
    with sqlite_file.ours(source), closing(sqlite_file.connect_to_read(source)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT name FROM experiments LIMIT 1").fetchall()
        make_private(target)
        with closing(sqlite3.connect(target)) as writer:
            reader.backup(
                writer,
                pages=PAGES_PER_STEP,
                progress=lambda _, left, of: progress.share("pages copied", of - left, of),
            )
        reader.execute("ROLLBACK")


def _seal(path: Path) -> None:
    """Make one file of a closed database, check it, and sync it. Raises Damaged."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        # A file in WAL mode needs two more beside it, even to be read.
        db.execute("PRAGMA journal_mode = DELETE")
        (first, *_) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if first != "ok":
            raise Damaged(f"{path}: the copy is not whole: {first.splitlines()[-1]}")
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _expect_free(path: Path) -> None:
    """Raise ConfigurationError where a file is in the way, or the folder is missing."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of {path} does not exist")
    for suffix in sqlite_file.BESIDE:
        other = path.with_name(path.name + suffix)
        if other.exists():
            raise ConfigurationError(f"{other} exists, and nothing is written over: move it away")
