"""Files in which one look at a log keeps what it has read for the next."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EPERM
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from stat import S_ISDIR
from tempfile import gettempdir
from typing import Final

from service.security.files import OTHERS_MODE, PRIVATE

logger = logging.getLogger(__name__)


OWN: Final = 0o700
"""Mode of the folder."""

MOST_BYTES = 2**28
"""Most bytes of all files together: the folder may lie in memory."""


class Checkpoints:
    """Checkpoints of the looks of one service, in a folder of its own.

    folder   None: nothing is kept

    What is kept may be lost or damaged: whoever reads it checks it, and begins anew.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = folder, most_bytes

    def load(self, name: str) -> bytes | None:
        """Return what was kept under a name; None: nothing."""
        if self._folder is None:
            return None
        try:
            _expect_own(self._folder)
            return self._path(self._folder, name).read_bytes()
        except OSError:
            return None

    def save(self, name: str, content: bytes) -> None:
        """Keep this in place of what was kept. The files used longest ago make room for it."""
        if self._folder is None or len(content) > self._most:
            return
        path = self._path(self._folder, name)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(OWN, exist_ok=True)
            _expect_own(self._folder)
            self._make_room(self._folder, len(content))
            draft.touch(PRIVATE)
            draft.write_bytes(content)
            draft.replace(path)
        except OSError as fault:
            logger.warning("a look at the log is not kept for the next: %s", fault.strerror)
            with suppress(OSError):
                draft.unlink()

    def forget(self, experiment: str) -> None:
        """Remove all that was kept of an experiment."""
        if self._folder is not None:
            for name in (history_of(experiment), shadows_of(experiment)):
                self._path(self._folder, name).unlink(missing_ok=True)

    def _make_room(self, folder: Path, size: int) -> None:
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        left = sum(file.stat().st_size for file in files)
        for file in files:
            if left + size <= self._most:
                return
            left -= file.stat().st_size
            file.unlink()

    @staticmethod
    def _path(folder: Path, name: str) -> Path:
        return folder / sha256(name.encode()).hexdigest()


NOWHERE = Checkpoints()


def history_of(experiment: str) -> str:
    """Name what is kept of the log of an experiment."""
    return f"history {experiment}"


def shadows_of(experiment: str) -> str:
    """Name what is kept of a look at the shadows of an experiment."""
    return f"shadows {experiment}"


def _expect_own(folder: Path) -> None:
    """Raise PermissionError where others can write to a folder: its name can be guessed."""
    found = folder.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & OTHERS_MODE:
        raise PermissionError(EPERM, f"{folder} belongs to others")


@contextmanager
def temporary_folder(store: str) -> Iterator[str | None]:
    """Make a folder for the checkpoints of a service over a store, and remove it at the end. What a
    killed service left there goes first: other code may have kept it. None where there is no place
    for a folder."""
    try:
        name = sha256(store.encode()).hexdigest()[:16]
        folder = Path(gettempdir()) / f"forage-{os.getuid()}-{name}"
        if os.path.lexists(folder):
            _expect_own(folder)
            rmtree(folder)
        folder.mkdir(OWN, exist_ok=True)
    except OSError as fault:
        logger.warning("each look at the log begins anew: no temporary folder (%s)", fault.strerror)
        yield None
        return
    try:
        yield str(folder)
    finally:
        rmtree(folder, ignore_errors=True)
