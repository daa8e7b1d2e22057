"""Private files, of logs and secrets: only their owner may read them."""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PRIVATE: Final = 0o600
OTHERS_MODE: Final = 0o077


def create_private(path: Path) -> None:
    """Create an empty file unless there is one."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def make_private(path: Path) -> None:
    """Ensure that a file exists and is private before a library opens it."""
    create_private(path)
    keep_private(path)


def keep_private(path: Path) -> None:
    """Revoke the permissions of others on a file, where it exists and is ours.

    By its name: to open and close a database's file would release SQLite's locks on it.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if not mode & OTHERS_MODE or not stat.S_ISREG(found.st_mode):
        return
    if found.st_uid == os.geteuid():
        path.chmod(mode & ~OTHERS_MODE)
        logger.info("%s had mode %04o: others may no longer read it", path, mode)
    else:
        logger.warning("%s has mode %04o and another owner: others may read it", path, mode)
