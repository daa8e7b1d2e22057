"""Disks that lose power, for processes that load `shim.c`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
VOLATILE: Final = ("-shm", ".lock", ".turn")
"""Suffixes of files that hold nothing across a start of the machine."""
LOG: Final = ".log"
"""Of files for people, which keep all."""


class Unavailable(Exception):
    """No shim can be made here; says why."""


def build(folder: Path) -> Path:
    """The compiled shim. Raises Unavailable."""
    if sys.platform != "linux":
        raise Unavailable("a shim of system calls needs Linux")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise Unavailable("there is no C compiler (cc, gcc or clang)")
    made = folder / "shim.so"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-o",
        str(made),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{compiler} does not compile {SOURCE.name}: {done.stderr.strip()}")
    return made


class Disk:
    """A folder whose files lose what was not synced when the power goes.

    environment   of the processes that write there
    """

    def __init__(self, shim: Path, folder: Path, synced: Path) -> None:
        synced.mkdir()
        self._folder, self._synced = folder.resolve(), synced.resolve()
        self.environment = {
            "LD_PRELOAD": str(shim),
            "FORAGE_CHAOS_DISK": str(self._folder),
            "FORAGE_CHAOS_SYNCED": str(self._synced),
        }

    def adopt(self) -> None:
        """Once nothing runs: what the campaign itself has changed is synced."""
        for kept in self._synced.iterdir():
            kept.unlink()
        for file in self._folder.rglob("*"):
            if file.is_file() and not file.name.endswith(VOLATILE):
                name = "%".join(file.relative_to(self._folder).parts)
                shutil.copyfile(file, self._synced / name)

    def lose_power(self) -> int:
        """Once nothing runs: every file is what was synced of it. The bytes that were lost."""
        lost = 0
        for file in sorted(self._folder.rglob("*")):
            if file.is_dir() or file.suffix == LOG:
                continue
            kept = self._synced / "%".join(file.relative_to(self._folder).parts)
            before = file.stat().st_size
            if file.name.endswith(VOLATILE):
                file.unlink()
            elif not kept.exists():
                lost += before
                os.truncate(file, 0)  # its name was durable, as far as we look
            else:
                lost += max(before - kept.stat().st_size, 0)
                shutil.copyfile(kept, file)
        return lost
