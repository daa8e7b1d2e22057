"""What processes of one host need to write one file of SQLite: turns, and a list of each other.

SQLite lets one process write at a time; the others sleep and ask again, for up to 1.8 s between two
busy ones. Here they wait in the kernel, which passes the turn on at once, also where the process
that had it was killed.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import ConfigurationError
from service.security.files import PRIVATE, keep_private

MOUNTS = Path("/proc/self/mountinfo")
"""File systems of a process, on Linux."""

OCTAL = re.compile(r"\\([0-7]{3})")
"""A space, or the like, in a path there."""

NETWORK_TYPES = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "ocfs2", "orangefs", "smb3", "smbfs",
    }
)  # fmt: skip
"""Types of file systems that other hosts may have open, too."""

LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""Types of file systems in user space that are local. Of the others some hold a lock for each mount
alone, and most are of the network."""


class Turns:
    """Turns of the processes that write one file, and their list.

    `forage.db.turn` is locked by the process whose turn it is. It holds what each process does, and
    until when it counts as alive without another word.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}.turn")
        self._file: int | None = None

    def open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, PRIVATE)
        keep_private(self._path)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextmanager
    def take(self) -> Iterator[int]:
        """Wait for the turn of this process, and pass it on at the end. Yields the file."""
        if self._file is None:
            raise OSError(f"{self._path} is not open")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self._file
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        """Announce a process for so many seconds, or its end where they are 0. Return what each
        living process does."""
        with self.take() as file:
            now = time.time()
            listed = {name: each for name, each in _listed(file).items() if each[1] > now}
            listed.pop(process, None)
            if seconds > 0:
                listed[process] = doing, now + seconds
            text = json.dumps(listed).encode()
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
        return {name: doing for name, (doing, _) in listed.items()}


def _listed(file: int) -> dict[str, tuple[str, float]]:
    """Read the list; it is empty where a process was killed while it wrote the list."""
    try:
        found: dict[str, tuple[str, float]] = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    except ValueError:
        return {}
    return found


def expect_local(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise ConfigurationError where a file lies on a file system whose locks or mapped memory
    processes may not share."""
    kind = _type_of(path, mounts)
    fuse = kind == "fuse" or kind.startswith("fuse.")
    if kind in NETWORK_TYPES or (fuse and kind not in LOCAL_FUSE):
        raise ConfigurationError(
            f"FORAGE_STORE: {path} lies on a file system of type {kind}, where several processes "
            "cannot write one SQLite file: put it on a local disk, serve with --workers 1, or use "
            "redis:// or postgresql://"
        )


def _type_of(path: Path, mounts: Path) -> str:
    """Return the type of the file system that a path lies on; empty where the system does not
    tell."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    kind, longest = "", -1
    for line in lines:
        fields, _, after = line.partition(" - ")
        place = Path(OCTAL.sub(lambda found: chr(int(found[1], 8)), fields.split()[4]))
        if path.is_relative_to(place) and len(place.parts) >= longest:
            kind, longest = after.split()[0], len(place.parts)  # a later mount covers an earlier
    return kind
