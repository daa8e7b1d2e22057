"""Whether the files of the embedded store are still those that were opened.

SQLite goes on writing a file that was deleted or replaced, and its writes are gone with the
process. So each commit checks the paths before it is acknowledged.
"""

import os
import sys
from pathlib import Path
from time import sleep

from service.errors import StoreReplaced

HEADER_BYTES = 100
FIXED = (slice(0, 24), slice(68, 72))
"""Parts of the header that stay: page size, write-ahead log or not (no backup has one),
application."""
COUNTER = slice(24, 28)  # of changes; written back with the first page, and only grows
WAL_MAGIC = (b"", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""First bytes of a write-ahead log, of which it has one. Once a commit follows a truncation by
others, it has zeros here; our own checkpoints leave an empty file or a whole one."""
AGAIN_S = 0.05  # a first page that is being written back may be read in part

Identity = tuple[int, int]
"""Identity of a file: device and inode."""


class OpenedFiles:
    """Database and write-ahead log, held open beside SQLite, so that they can be copied from /proc
    when their names are gone."""

    def __init__(self, path: Path) -> None:
        self._names = {"": path, "-wal": path.with_name(f"{path.name}-wal")}
        self._path = path
        self._held = dict[str, int]()
        self._identities = dict[str, Identity]()
        self._header = b""
        self._replaced: str | None = None

    def open(self) -> None:
        """Open the files after SQLite."""
        for suffix, name in self._names.items():
            self._held[suffix] = held = os.open(name, os.O_RDONLY)
            self._identities[suffix] = _identity(os.fstat(held))
        self._header = os.pread(self._held[""], HEADER_BYTES, 0)

    def close(self) -> None:
        """Close the files after SQLite: this drops the locks of this process on them (POSIX)."""
        for held in self._held.values():
            os.close(held)
        self._held.clear()

    def expect(self) -> None:
        """Check the files, in 20 us. Raises StoreReplaced, from then on for good."""
        if self._replaced is None:
            self._replaced = self._fault()
        self.expect_known()

    def expect_known(self) -> None:
        """Raise StoreReplaced where `expect` has."""
        if self._replaced is not None:
            raise StoreReplaced(self._replaced)

    def _fault(self) -> str | None:
        for suffix, name in self._names.items():
            try:
                found = _identity(name.stat())
            except FileNotFoundError:
                return self._said(f"{name} was deleted or moved")
            if found != self._identities[suffix]:
                return self._said(f"{name} was replaced by another file")
        if os.pread(self._held["-wal"], 4, 0) not in WAL_MAGIC:
            return self._said(f"{self._names['-wal']} was truncated")
        if self._overwritten():
            sleep(AGAIN_S)
            if self._overwritten():
                return (
                    f"{self._path} was overwritten while this service had it open: nothing is "
                    "written any more. Stop the service and restore a backup (forage restore)."
                )
        return None

    def _overwritten(self) -> bool:
        """Return whether a copy of another time or database lies over the file."""
        found = os.pread(self._held[""], HEADER_BYTES, 0)
        if any(found[part] != self._header[part] for part in FIXED):
            return True
        if found[COUNTER] < self._header[COUNTER]:
            return True
        self._header = found
        return False

    def _said(self, what: str) -> str:
        say = f"{what} while this service had it open: nothing is acknowledged any more. "
        if sys.platform == "linux":
            copies = ", ".join(
                f"/proc/{os.getpid()}/fd/{held} to COPY.db{suffix}"
                for suffix, held in self._held.items()
            )
            say += f"Before you stop it, save what it still holds: copy {copies}. "
        return f"{say}Then put that copy or a backup in place, and start the service again."


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
