"""Copies of the embedded store: an image of its file while a service writes, and parts of it."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from service.errors import ConfigurationError, Damaged, StoreError
from service.files import make_private
from service.stores import sqlite_file
from service.stores.keeping import Instant, KeptMark, Part, Removed

PAGES = 256  # of 4 KiB, a step: after each it is said how far it is

Done = Callable[[int, int], None]
"""Takes how many pages are copied, and how many there are."""


# -- parts -----------------------------------------------------------------------------------------


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of one commit."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def instant(db: sqlite3.Connection, experiment: str) -> Instant:
    of = (experiment,)
    with _one_moment(db):
        position = db.execute("SELECT position FROM experiments WHERE name = ?", of).fetchone()
        row = db.execute(
            "SELECT number FROM decisions WHERE experiment = ? ORDER BY number DESC LIMIT 1",
            of,
        ).fetchone()
        due = db.execute(
            # not that one was settled before its row, once the row is there
            "SELECT decision, due FROM due WHERE experiment = ? AND (due IS NOT NULL OR NOT EXISTS "
            "(SELECT 1 FROM decisions WHERE experiment = due.experiment AND id = decision))",
            of,
        ).fetchall()
        counts = db.execute(
            "SELECT policy, decisions FROM decision_counts WHERE experiment = ?", of
        ).fetchall()
        removed = db.execute(
            "SELECT trimmed, erased FROM removed WHERE experiment = ?", of
        ).fetchone()
    return Instant(
        position[0] if position else 0,
        row[0] if row else 0,
        dict(due),
        dict(counts),
        Removed(*(removed or ())),
    )


def list_marks(
    db: sqlite3.Connection, experiment: str, cursor: str, limit: int
) -> tuple[list[KeptMark], str]:
    """In the order of their identities; the cursor is the last one."""
    found = [
        KeptMark(*row)
        for row in db.execute(
            "SELECT identity, value, position, keep_until FROM marks "
            "WHERE experiment = ? AND identity > ? ORDER BY identity LIMIT ?",
            (experiment, cursor, limit),
        )
    ]
    return found, found[-1].identity if len(found) == limit else ""


def blob_keys(db: sqlite3.Connection, experiment: str) -> list[str]:
    query = "SELECT key FROM blobs WHERE experiment = ? ORDER BY key"
    return [key for (key,) in db.execute(query, (experiment,))]


def load(db: sqlite3.Connection, experiment: str, part: Part) -> None:
    last = max([part.position or 0, *(record.position for record in part.events)])
    with sqlite_file.transaction(db):
        write = db.executemany
        write(
            "INSERT INTO experiments VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
            "SET position = max(position, excluded.position)",
            [(experiment, last)],
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
            "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",  # a mark may be listed twice
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


def adopt_secret(path: Path, secret: bytes) -> None:
    if sqlite_file.key_of(path).exists():
        raise StoreError(f"{path} has a secret of its own already")
    sqlite_file.keep_secret(path, secret)


# -- files -----------------------------------------------------------------------------------------


def image(source: Path, target: Path, done: Done | None = None) -> None:
    """A copy of the database as of one commit, while a service goes on committing.

    The read transaction stays open from the first page to the last: in WAL mode it holds nobody
    up, and without it SQLite would begin again after each commit that comes between two steps.
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
    """Make one file of a database that nobody has open, check all of it, and see it on the disk.
    Raises Damaged where it is not whole."""
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
    """Raises ConfigurationError where there is something already, or no folder for it."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of {path} does not exist")
    for suffix in sqlite_file.BESIDE:
        other = path.with_name(path.name + suffix)
        if other.exists():
            raise ConfigurationError(f"{other} exists, and nothing is written over: move it away")


def check_key(path: Path, secret: bytes | None) -> None:
    """Raises ConfigurationError where the secret of another store lies beside this path."""
    key = sqlite_file.key_of(path)
    with sqlite_file.ours(path), suppress(FileNotFoundError):
        if key.read_bytes() != secret:
            raise ConfigurationError(f"{key} holds the secret of another store: move it away")


def place(draft: Path, path: Path) -> None:
    """Let a sealed database, and its secret, be at `path`: the secret first, for a service that
    found none beside its database would make one."""
    check_free(path)
    with sqlite_file.ours(path):
        key = sqlite_file.key_of(draft)
        if key.exists():
            key.rename(sqlite_file.key_of(path))
        draft.rename(path)
        sqlite_file.sync_folder(path.parent)
