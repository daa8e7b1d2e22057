"""The files of the embedded store, which their owner alone can read, and its connections.

`forage.db` is the database. The service that writes it holds `forage.db.lock`, alone or with its
workers. SQLite gives the files beside a database its mode.
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from service.errors import (
    ConfigurationError,
    Damaged,
    NoTables,
    StoreLocked,
    StoreUnavailable,
)
from service.log.stores.store import expect_layout
from service.security.files import PRIVATE, create_private, keep_private

T = TypeVar("T")

APPLICATION = 0x466F7267  # "Forg", in the file's header, marks our files
SQLITE_LAYOUT = 2
"""Number of the layout of the tables, in the file's header. Raise it with every change of them."""
BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite takes for parts of a database."""
READ_ERRORS = ("SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS")
"""Errors of SQLite that a bad sector makes: damage, and no outage that ends."""
STATEMENTS = 512  # prepared ones of a connection: the writer has one for each count of rows
BUSY_S = 2.0  # processes take turns: the only other writer is a person with a shell
WAL_PAGES = 4_000
"""Pages of the write-ahead log, 16 MB, after which a commit writes them back."""
CACHE_KIB = 16_384

SQLITE_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE experiments (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL, digest TEXT NOT NULL  -- of the last event, trimmed or not
) WITHOUT ROWID;
CREATE TABLE events (
    experiment TEXT NOT NULL, position INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (experiment, position)
) WITHOUT ROWID;
CREATE TABLE marks (
    experiment TEXT NOT NULL, identity TEXT NOT NULL,
    value TEXT NOT NULL, position INTEGER NOT NULL, keep_until REAL,
    PRIMARY KEY (experiment, identity)
) WITHOUT ROWID;
CREATE INDEX marks_by_age ON marks (experiment, keep_until);
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY,  -- rows lie in the order they came
    experiment TEXT NOT NULL, id TEXT NOT NULL, payload BLOB NOT NULL,
    UNIQUE (experiment, id)
);
CREATE INDEX decisions_in_order ON decisions (experiment);  -- and by number, as any index
CREATE TABLE decision_counts (
    experiment TEXT NOT NULL, series TEXT NOT NULL, decisions INTEGER NOT NULL,
    PRIMARY KEY (experiment, series)
) WITHOUT ROWID;
CREATE TABLE due (
    experiment TEXT NOT NULL, decision TEXT NOT NULL,
    due REAL,  -- NULL: settled before its row came, so never due
    PRIMARY KEY (experiment, decision)
) WITHOUT ROWID;
CREATE INDEX due_by_time ON due (experiment, due, decision);
CREATE TABLE snapshots (
    experiment TEXT NOT NULL, position INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (experiment, position)
);
CREATE TABLE blobs (
    experiment TEXT NOT NULL, key TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (experiment, key)
);
CREATE TABLE origins (
    experiment TEXT PRIMARY KEY, position INTEGER NOT NULL, payload BLOB NOT NULL
);
CREATE TABLE readers (
    experiment TEXT NOT NULL, reader TEXT NOT NULL,
    position INTEGER NOT NULL, row INTEGER NOT NULL,
    PRIMARY KEY (experiment, reader)
) WITHOUT ROWID;
CREATE TABLE removed (
    experiment TEXT PRIMARY KEY, trimmed INTEGER NOT NULL, erased INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE secret (content BLOB NOT NULL);  -- of tokens, one row
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SQLITE_LAYOUT};
COMMIT;
"""


class SqliteThread:
    """One connection and its thread. Raises the errors of `service.errors`."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path, self._connect = path, connect
        self._db: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._connect.__name__)
        await self._in_thread(self._open)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._in_thread(lambda: self._run(work))

    async def close(self) -> None:
        """Close the connection after the running work."""
        if self._thread is not None:
            await self._in_thread(self._close)
            self._thread.shutdown()
            self._thread = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        with ours(self._path):
            self._db = self._connect(self._path)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            raise StoreUnavailable(f"{self._path} is not open")
        with ours(self._path):
            return work(self._db)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


@contextmanager
def ours(path: Path) -> Iterator[None]:
    """Turn errors of sqlite3 and of the OS into those of `service.errors`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", "")  # not where Python raised it
        if code == "SQLITE_NOTADB":
            raise ConfigurationError(f"FORAGE_STORE: {path} is not an SQLite database") from error
        if code.startswith("SQLITE_CORRUPT") or code in READ_ERRORS:
            raise Damaged(f"{path}: {error}") from error
        if isinstance(error, sqlite3.OperationalError):
            raise StoreUnavailable(f"{path}: {error}") from error
        raise
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all or nothing. The connection is usable after a failure."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has rolled back already
            db.execute("ROLLBACK")
        raise


def connect_to_write(path: Path) -> sqlite3.Connection:
    create_private(path)
    with _connection(path, "rw") as db:
        is_ours = _has_tables(db, path)
        for suffix in BESIDE:
            keep_private(path.with_name(path.name + suffix))
        if not is_ours:
            db.executescript(SQLITE_TABLES)
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise ConfigurationError(f"FORAGE_STORE: {path} lies on a file system without WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")  # deleted bytes are overwritten in the file
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        db.execute("SELECT name FROM experiments LIMIT 1").fetchall()  # makes the WAL
        return db


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that sees every commit, and can neither change nor create the file."""
    if not path.exists():
        raise StoreUnavailable(f"{path} does not exist yet: the service creates it when it starts")
    with _connection(path, "ro") as db:
        if not _has_tables(db, path):
            raise NoTables(f"{path} has no tables yet: the service creates them")
        return db


@contextmanager
def _connection(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Open a connection, and close it where the caller cannot prepare it."""
    uri = f"{path.as_uri()}?mode={mode}"
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=BUSY_S, cached_statements=STATEMENTS
    )
    try:
        yield db
    except BaseException:
        db.close()
        raise


def _has_tables(db: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there. Raises UnknownSchema for tables of another layout, and
    ConfigurationError for the database of another program."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION:
        expect_layout(path, layout, SQLITE_LAYOUT)
        return True
    if db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise ConfigurationError(f"FORAGE_STORE: {path} is the database of another program")
    return False


def hold(path: Path, *, shared: bool = False) -> int:
    """Return a file descriptor that holds the lock of this database until it is closed. shared:
    beside other processes that hold it so."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"FORAGE_STORE: the folder of {path} does not exist")
    with ours(path):
        held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            keep_private(Path(f"{path}.lock"))
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(held, kind | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(held)
            if not isinstance(error, BlockingIOError):
                raise
            raise StoreLocked(
                f"{path} is served by another forage process; one service writes an sqlite store, "
                "with --workers in several processes (redis:// and postgresql:// take several "
                "services)"
            ) from error
    return held


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
