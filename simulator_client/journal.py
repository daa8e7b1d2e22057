"""A run on disk: what was asked for, and every visit that is done, so that a run can be resumed.

    DIR/run.json                what the run is (`Run`), replaced whole
    DIR/visits-<policy>.jsonl   one line per finished visit, appended
    DIR/pending-<policy>.json   the visit between its decision and its reward

A visit's line is written after its reward was answered. A visit that was interrupted in between
is finished on resume with the same decision: the service counts a reward once, so the visit is
neither lost nor counted twice. This holds for a killed client; after a power cut of its host the
last lines may be missing, and those visits are then decided once more.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from simulator_client.errors import UsageError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is; a resumed run keeps all of it but, if asked, the number of visits."""

    run: str
    experiment: str
    world: str
    world_seed: int
    seed: int
    visits: int
    shock_at: int | None
    policies: tuple[str, ...]
    wait_for_training: bool
    training_timeouts: int = 0  # versions that the run stopped waiting for


@dataclass(frozen=True, slots=True)
class Pending:
    """A decision whose reward has not been answered yet."""

    visit: int
    decision_id: str
    shown: list[str]
    select_ms: float
    retries: int
    lost_selects: int


@dataclass(frozen=True, slots=True)
class Record:
    """A finished visit of one policy."""

    visit: int
    shown: list[str]
    group: str
    clicks: float
    expected: float  # true expected clicks of what was shown
    best: float  # true expected clicks of the best choice
    select_ms: float
    reward_ms: float
    retries: int
    lost_selects: int


def save_run(folder: Path, run: Run) -> None:
    """Write run.json, all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "run.json", json.dumps({"schema": SCHEMA} | asdict(run), indent=2) + "\n")


def load_run(folder: Path) -> Run:
    """Read run.json; UsageError where the folder holds no run of this schema."""
    path = folder / "run.json"
    try:
        fields = json.loads(path.read_text())
        schema = fields.pop("schema")
        if schema != SCHEMA:
            raise UsageError(f"{path} has schema {schema}; this program reads {SCHEMA}")
        return Run(**(fields | {"policies": tuple(fields["policies"])}))
    except OSError as error:
        raise UsageError(f"{folder} holds no run: {error.strerror} ({path.name})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def lock(folder: Path) -> IO[str]:
    """Keep the run for this process until the file is closed; UsageError where one runs it."""
    held = (folder / "lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise UsageError(f"the run in {folder} is still going on in another process") from error
    return held


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a crash, meets the old text or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def records(folder: Path, policy: str) -> Iterator[Record]:
    """The finished visits of a policy, in order; a torn last line is left out."""
    path = _visits_path(folder, policy)
    if not path.exists():
        return
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            if not line.endswith(b"\n"):
                return
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise UsageError(f"{path} is damaged in line {index + 1}: {error}") from error
            if record.visit != index:
                raise UsageError(f"{path} has visit {record.visit} in line {index + 1}")
            yield record


class Journal:
    """The journal of one policy, open for writing by the only process that runs it."""

    def __init__(self, folder: Path, policy: str) -> None:
        path = _visits_path(folder, policy)
        self._visits = path.open("ab")
        self._visits.truncate(_whole_lines_bytes(path))
        waiting = folder / f"pending-{quote(policy, safe='')}.json"
        self._pending = os.open(waiting, os.O_RDWR | os.O_CREAT, 0o644)

    def begin(self, pending: Pending) -> None:
        """Remember a decision, in place of the one before: its visit is journalled by now."""
        text = json.dumps(_fields(pending)).encode() + b"\n"
        os.pwrite(self._pending, text, 0)

    def pending(self, visit: int) -> Pending | None:
        """The decision that `visit` was left with, if it was."""
        line, end, _ = os.pread(self._pending, 1 << 20, 0).partition(b"\n")
        if not end:
            return None
        try:
            pending = Pending(**json.loads(line))
        except (ValueError, TypeError):
            return None  # torn: the visit makes a new decision
        return pending if pending.visit == visit else None

    def finish(self, record: Record) -> None:
        """Append a visit and hand it to the operating system."""
        self._visits.write(json.dumps(_fields(record)).encode() + b"\n")
        self._visits.flush()

    def close(self) -> None:
        """Close the files."""
        self._visits.close()
        os.close(self._pending)


def _fields(value: Pending | Record) -> dict[str, Any]:
    # dataclasses.asdict copies deeply: 20 microseconds against 1, and this runs twice a visit
    return {name: getattr(value, name) for name in value.__slots__}


def _visits_path(folder: Path, policy: str) -> Path:
    return folder / f"visits-{quote(policy, safe='')}.jsonl"


def _whole_lines_bytes(path: Path) -> int:
    """Length up to the last line end."""
    return path.read_bytes().rfind(b"\n") + 1
