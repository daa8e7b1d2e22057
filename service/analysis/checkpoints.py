"""Files in which one look at a log keeps what it has read for the next."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from service.security.files import PRIVATE

logger = logging.getLogger(__name__)


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
            self._make_room(self._folder, len(content))
            draft.touch(PRIVATE)
            draft.write_bytes(content)
            draft.replace(path)
        except OSError as fault:
            logger.warning("a look at the log is not kept for the next: %s", fault.strerror)
            draft.unlink(missing_ok=True)

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


@contextmanager
def temporary_folder() -> Iterator[str | None]:
    """Make a folder for checkpoints that goes with its process; None where there is no place for
    one."""
    try:
        folder = TemporaryDirectory(prefix="forage-", ignore_cleanup_errors=True)
    except OSError as fault:
        logger.warning("each look at the log begins anew: no temporary folder (%s)", fault.strerror)
        yield None
        return
    with folder as path:
        yield path
