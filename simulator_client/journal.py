"""A run on disk: what was asked for, and every visit that is done, so that a run can be resumed.

    DIR/run.json                what the run is (`Run`), replaced whole
    DIR/visits-<policy>.jsonl   one line per finished visit, appended
    DIR/pending-<policy>.json   the visit between its decision and its reward

A visit's line is written after its reward was answered. A visit that was interrupted in between
is finished on resume with the same decision: the service counts a reward once, so the visit is
neither lost nor counted twice. This holds for a killed client; after a power cut of its host the
last lines may be missing, and those visits are then decided once more.

A run at a rate has many visits between decision and reward, keeps none of them, and is not
resumed: the pause would be part of its delay.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

from simulator_client.errors import UsageError
from simulator_client.worlds import World, make_world

SCHEMA = 1
T = TypeVar("T")


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
    data: str | None = None  # the file of a world that is read from one
    label: str | None = None
    risky: bool = False
    own: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings from a policy file
    reporting: str = "all"  # which visits are reported, and when
    wait_seconds: float | None = None  # for a click; None: every visit is reported at once
    rate: float | None = None  # visits a second of each policy; None: one after another


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
    best: float | None  # true expected clicks of the best choice; None: not known
    select_ms: float
    reward_ms: float | None  # None: nothing was sent
    retries: int
    lost_selects: int
    uniform: float | None = None  # true expected clicks of any choice, equally likely
    settled: int = 1  # arms that the outcome tells of; 0: rejected (a log had another choice)
    begun_s: float | None = None  # since the first visit, in a run at a rate

    @property
    def matched(self) -> bool:
        """Whether the visit counts."""
        return self.settled > 0


def world_of(run: Run) -> World[Any]:
    """The world that a run plays."""
    data = None if run.data is None else Path(run.data)
    return make_world(
        run.world, run.world_seed, run.shock_at, data, label=run.label, risky=run.risky
    )


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
    path = file_of(folder, "visits", policy, "jsonl")

    def record(fields: dict[str, Any]) -> Record:
        return Record(**fields)

    for index, found in enumerate(whole_lines(path, record)):
        if found.visit != index:
            raise UsageError(f"{path} has visit {found.visit} in line {index + 1}")
        yield found


def whole_lines(path: Path, made: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """What the lines of a file hold, one JSON object each; a torn last line is left out."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            if not line.endswith(b"\n"):
                return
            try:
                yield made(json.loads(line))
            except (ValueError, TypeError) as error:
                raise UsageError(f"{path} is damaged in line {index + 1}: {error}") from error


class Journal:
    """The journal of one policy, open for writing by the only process that runs it."""

    def __init__(self, folder: Path, policy: str) -> None:
        path = file_of(folder, "visits", policy, "jsonl")
        self._visits = path.open("ab")
        cut_torn_line(self._visits, path)
        waiting = file_of(folder, "pending", policy, "json")
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


def file_of(folder: Path, what: str, policy: str, suffix: str) -> Path:
    """The file of a policy."""
    return folder / f"{what}-{quote(policy, safe='')}.{suffix}"


def cut_torn_line(file: IO[bytes], path: Path) -> None:
    """Cut a file, open for appending, after its last line end."""
    file.truncate(path.read_bytes().rfind(b"\n") + 1)
