"""The embedded store: its files, the disk below them, who holds its lock, how it is set."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from service.errors import ConfigurationError, ForageError
from service.log.stores import sqlite_file
from service.log.stores.sqlite import SqliteStore
from service.maintenance.doctor.checks import Check, fault, ok, size, warning
from service.maintenance.doctor.host import private
from service.settings import Settings

NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "fuse.s3fs", "ceph"}
"""File systems on which SQLite's locks and shared memory cannot be relied on."""

IN_MEMORY = "it is kept in memory, and lost at a power failure"
VOLATILE = {
    "tmpfs": IN_MEMORY,
    "ramfs": IN_MEMORY,
    "overlay": "in a container that is a layer of its own, and goes with it",
}

FREE_BYTES, ROOM_BYTES = 100 << 20, 1 << 30
WAL_BYTES = 512 << 20
TAIL_SNAPSHOTS = 5
"""Events behind the last snapshot, in snapshots: above, a start takes long."""


def examine_sqlite(settings: Settings) -> Iterator[Check]:
    try:
        path = SqliteStore.from_url(settings.store).path
    except ConfigurationError as error:
        yield fault("store", str(error), "correct FORAGE_STORE")
        return
    folder = path.parent
    if not folder.is_dir():
        yield fault("store", f"the folder {folder} does not exist", f"mkdir -p {folder}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield fault("store", f"the folder {folder} cannot be written", "chown it")
    yield _disk(folder)
    yield _file_system(folder)
    if not path.exists():
        yield ok("store", f"{path} is not there yet: `forage serve` makes it")
        return
    yield from private(path, "database")
    yield _lock(path)
    try:
        with sqlite_file.ours(path), closing(sqlite_file.connect_to_read(path)) as db:
            yield from _database(db, path, settings)
    except ForageError as error:
        yield fault("store", str(error), "restore a backup: forage restore --help")


def _database(db: sqlite3.Connection, path: Path, settings: Settings) -> Iterator[Check]:
    (layout,) = db.execute("PRAGMA user_version").fetchone()
    bytes_used = path.stat().st_size
    yield ok("store", f"{path}: layout {layout}, {size(bytes_used)}")
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    if mode == "wal":
        say = "write-ahead log; the service writes it with synchronous=FULL: an acknowledged write "
        yield ok("durability", say + "survives kill -9 and power loss")
    else:
        say = f"journal_mode is {mode}: somebody changed it"
        yield warning("durability", say, "the next `forage serve` sets WAL")
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > WAL_BYTES:
        say = f"{log} has {size(log.stat().st_size)}: a reader keeps it from being written back"
        yield warning("durability", say, "look for an export, audit or shell that hangs")
    if bytes_used < ROOM_BYTES:  # else it takes more than a few seconds
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            yield fault("store", f"{path} is damaged: {state}", "forage restore --help")
    rows = db.execute(
        "SELECT name, position, (SELECT max(position) FROM snapshots WHERE experiment = name) "
        "FROM experiments ORDER BY name"
    ).fetchall()
    for name, position, snapshot in rows:
        yield tail(name, position, snapshot, settings)


def tail(name: str, position: int, snapshot: int | None, settings: Settings) -> Check:
    """The events that a start has to fold."""
    behind = position - (snapshot or 0)
    if behind > TAIL_SNAPSHOTS * settings.snapshot_every_events:
        return warning(
            f"experiment {name}",
            f"{behind:,} events since its last snapshot: a start folds all of them",
            "well with more than twice as many arms; else see in the service's log why none is "
            "taken (stopping it in order takes one)",
        )
    say = f"{position:,} events, {behind:,} since the last snapshot"
    return ok(f"experiment {name}", say)


def _disk(folder: Path) -> Check:
    found = shutil.disk_usage(folder)
    say = f"{size(found.free)} free of {size(found.total)}"
    advice = "make room; FORAGE_RETENTION_DAYS keeps the log small"
    if found.free < FREE_BYTES:
        return fault("disk", f"{say}: soon no reward can be taken", advice)
    if found.free < ROOM_BYTES or found.free < 0.05 * found.total:
        return warning("disk", say, advice)
    return ok("disk", say)


def _file_system(folder: Path) -> Check:
    kind = file_system(folder)
    say = f"{folder} lies on {kind}"
    if kind in NETWORK:
        advice = "put it on a local disk, or use redis://"
        say = f"{say}: SQLite cannot lock there, and may lose what it wrote"
        return fault("file system", say, advice)
    if kind in VOLATILE:
        advice = "put it on a disk or a volume, where it is to last"
        return warning("file system", f"{say}: {VOLATILE[kind]}", advice)
    return ok("file system", kind or "unknown: this system has no /proc/mounts")


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Of the mount that a folder lies on; empty where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        point, found = [*line.split(" "), "", "", ""][1:3]
        where = Path(point.replace(r"\040", " "))
        if folder.resolve().is_relative_to(where) and len(where.parts) >= best:
            best, kind = len(where.parts), found
    return kind


def _lock(path: Path) -> Check:
    """Read from the system: to try it would keep a service from starting for a moment."""
    try:
        found = Path(f"{path}.lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ok("lock", "nobody is known to hold it")
    for line in locks:
        fields = line.split()
        if "FLOCK" in fields and fields[5].rpartition(":")[2] == str(found.st_ino):
            return ok("lock", f"held by process {fields[4]}, which serves this store")
    return ok("lock", "free: no service runs on this store")
