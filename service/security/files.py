"""Files that hold what was logged, or a secret: their owner alone may read them."""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PRIVATE: Final = 0o600
OTHERS: Final = 0o077


def create_private(path: Path) -> None:
    """An empty file, where there is none."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def make_private(path: Path) -> None:
    """See to it that a file is there, and its owner's alone, before a library opens it."""
    create_private(path)
    keep_private(path)


def keep_private(path: Path) -> None:
    """Take from others what they may do with a file, where it is there and ours.

    By its name: to open and close the file of a database would end the locks that SQLite has on it.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if not mode & OTHERS or not stat.S_ISREG(found.st_mode):
        return
    if found.st_uid == os.geteuid():
        path.chmod(mode & ~OTHERS)
        logger.info("%s had mode %04o: others may no longer read it", path, mode)
    else:
        logger.warning("%s has mode %04o and another owner: others may read it", path, mode)
