"""Copies of the embedded store: an image of its file while a service writes."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from service.errors import ConfigurationError, Damaged
from service.log.stores import sqlite_file
from service.security.files import make_private

PAGES = 256  # of 4 KiB, between two reports of progress

Done = Callable[[int, int], None]
"""Takes the numbers of copied and of all pages."""


def image(source: Path, target: Path, done: Done | None = None) -> None:
    """Copy the database as of one commit, while a service goes on committing.

    One read transaction covers all pages: in WAL mode it delays nobody, and without it SQLite would
    start again after each commit.
    """
    with sqlite_file.ours(source), closing(sqlite_file.connect_to_read(source)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT name FROM experiments LIMIT 1").fetchall()
        with sqlite_file.ours(target):
            make_private(target)
        with sqlite_file.ours(target), closing(sqlite3.connect(target)) as writer:
            reader.backup(
                writer,
                pages=PAGES,
                progress=done and (lambda _, left, total: done(total - left, total)),
            )
        reader.execute("ROLLBACK")


def seal(path: Path) -> None:
    """Make one file of a closed database, check it, and sync it. Raises Damaged."""
    with sqlite_file.ours(path):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            # A file in WAL mode needs two more beside it, even to be read.
            db.execute("PRAGMA journal_mode = DELETE")
            (first, *_) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if first != "ok":
                raise Damaged(f"{path}: the copy is not whole: {first.splitlines()[-1]}")
        with path.open("rb") as file:
            os.fsync(file.fileno())


def check_free(path: Path) -> None:
    """Raises ConfigurationError where a file is in the way, or the folder is missing."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of {path} does not exist")
    for suffix in sqlite_file.BESIDE:
        other = path.with_name(path.name + suffix)
        if other.exists():
            raise ConfigurationError(f"{other} exists, and nothing is written over: move it away")


def check_key(path: Path, secret: bytes | None) -> None:
    """Raises ConfigurationError where another store's secret lies beside this path."""
    key = sqlite_file.key_of(path)
    with sqlite_file.ours(path), suppress(FileNotFoundError):
        if key.read_bytes() != secret:
            raise ConfigurationError(f"{key} holds the secret of another store: move it away")


def place(draft: Path, path: Path) -> None:
    """Move a sealed database and its secret to `path`: the secret first, since a service without
    one would make one."""
    check_free(path)
    with sqlite_file.ours(path):
        key = sqlite_file.key_of(draft)
        if key.exists():
            key.rename(sqlite_file.key_of(path))
        draft.rename(path)
        sqlite_file.sync_folder(path.parent)
