"""Witness: what this host has seen of a store's logs, in a small file outside of the store.

A store that lost its last events while no process was running, snapshots included, cannot tell. The
file is written in place and never synced: it survives kill -9, and a host that loses power may lose
its last moments, no more.
"""

import fcntl
import logging
import os
from hashlib import blake2b, sha256
from pathlib import Path

from service.log.live import End, Live
from service.security.files import make_private
from service.state.checksum import begin

logger = logging.getLogger(__name__)

LINE = 256
"""Bytes of a line, one for each experiment: its name, epoch, position, checksum and rows, and a
digest of these."""

OFF = Path("off")
NOTHING = End(0, 0, begin(0), 0)


class Witness:
    """path   None: there is no witness"""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: int | None = None
        self._lines: dict[str, int] = {}
        self._written: dict[str, End] = {}

    def open(self) -> dict[str, End]:
        """What was seen last, by experiment. Where the file cannot be had, a warning is logged."""
        if self.path is None:
            return {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            make_private(self.path)
            self._file = os.open(self.path, os.O_RDWR)
            seen = self._read()
        except OSError as fault:
            logger.warning(
                "there is no witness of the log outside of the store (FORAGE_WITNESS): %s", fault
            )
            return {}
        self._lines = {name: number for name, (number, _) in seen.items()}
        self._written = {name: own for name, (_, own) in seen.items()}
        return self._written.copy()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def caught_up(self, live: Live) -> None:
        """What is known of a loss stays until the log tells of it, in a later epoch."""
        state = live.state
        if (
            self._file is None
            or not live.recovered
            or not state.position
            or live.unreported_loss is not None
        ):
            return
        end = End(state.epoch, state.position, live.checksum, live.rows)
        before = self._written.get(state.name, NOTHING)
        if end == before or (end.epoch, end.position) < (before.epoch, before.position):
            return
        self._written[state.name] = end
        try:
            if state.name not in self._lines:
                self._add(state.name)
            os.pwrite(self._file, _line(state.name, end), self._lines[state.name] * LINE)
        except OSError as fault:
            logger.warning("the witness of the log cannot be written: %s", fault)
            self.close()

    def _add(self, name: str) -> None:
        """A line of its own; other processes of this host add theirs."""
        assert self._file is not None
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            known = {other: number for other, (number, _) in self._read().items()}
            end = os.fstat(self._file).st_size // LINE
            self._lines[name] = known.get(name, end)
            os.pwrite(self._file, _line(name, NOTHING), self._lines[name] * LINE)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read(self) -> dict[str, tuple[int, End]]:
        """Number of the line and what it says, by experiment. A line that was torn is passed
        over."""
        assert self._file is not None
        content, found = os.pread(self._file, os.fstat(self._file).st_size, 0), {}
        for start in range(0, len(content), LINE):
            *said, digest = content[start : start + LINE].decode(errors="replace").split() or [""]
            if len(said) == 5 and digest == _digest(" ".join(said)):
                name, epoch, position, checksum, rows = said
                end = End(int(epoch), int(position), checksum, int(rows))
                found[name] = start // LINE, end
        return found


def _line(name: str, seen: End) -> bytes:
    checksum = seen.checksum or begin(seen.position)
    text = f"{name} {seen.epoch} {seen.position} {checksum} {seen.rows}"
    return f"{text} {_digest(text)}".ljust(LINE - 1).encode() + b"\n"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def witness_of(store: str, folder: Path | None) -> Path | None:
    """The file for a store's URL: in the folder, or beside an embedded database, or where programs
    of this user keep their state. None: there is to be none, or the store ends with its process.

    A URL's credentials and options may change; the file does not."""
    scheme, _, rest = store.partition("://")
    if scheme == "memory" or folder == OFF:
        return None
    if scheme == "sqlite" and folder is None:
        path = Path(rest[1:]).resolve()
        return path.with_name(f"{path.name}.witness")
    place = str(Path(rest[1:]).resolve()) if scheme == "sqlite" else rest.rpartition("@")[2]
    name = sha256(place.partition("?")[0].encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return (folder or home / "forage") / f"{name}.witness"
