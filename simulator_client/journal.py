"""A run on disk: its description, and every finished visit.

    DIR/run.json                the run (`Run`), replaced whole
    DIR/visits-<policy>.jsonl   one line per finished visit, appended after its reward was answered

A visit that an interruption left between decision and reward has no line: the service closes its
decision with the default reward, and the report does without it.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from simulator_client.errors import UsageError
from simulator_client.worlds import World, make_world

SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    run: str
    experiment: str
    world: str
    world_seed: int
    seed: int
    visits: int
    shock_at: int | None
    policies: tuple[str, ...]
    wait_for_training: bool
    training_timeouts: int = 0  # versions that did not come in time
    data: str | None = None  # the file of a world that is read from one
    label: str | None = None
    risky: bool = False
    clicks: float | None = None  # of a synthetic world
    effects: str | None = None
    own: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings from a policy file
    reporting: str = "all"  # which visits are reported, and when
    wait_seconds: float | None = None  # for a click; None: every visit is reported at once
    rate: float | None = None  # visits a second of each policy; None: one after another


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
    reward_ms: float | None  # None: no reward was sent
    retries: int
    lost_selects: int
    uniform: float | None = None  # true expected clicks of any choice, equally likely
    settled: int = 1  # rewarded arms; 0: rejected (a log had another choice)
    begun_s: float | None = None  # since the first visit, in a run at a rate

    @property
    def matched(self) -> bool:
        return self.settled > 0


def world_of(run: Run) -> World[Any]:
    data = None if run.data is None else Path(run.data)
    return make_world(
        run.world, run.world_seed, run.shock_at, data, label=run.label, risky=run.risky,
        clicks=run.clicks, effects=run.effects,
    )  # fmt: skip


def save_run(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "run.json", json.dumps({"schema": SCHEMA} | asdict(run), indent=2) + "\n")


def load_run(folder: Path) -> Run:
    """Read run.json. Raises UsageError if the folder holds no run of this schema."""
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


def write_whole(path: Path, text: str) -> None:
    """Replace a file: readers, and a crash, see either the old text or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def records(folder: Path, policy: str) -> Iterator[Record]:
    """Yield the finished visits of a policy, in order, without a torn last line."""
    path = file_of(folder, "visits", policy)
    for index, found in enumerate(whole_lines(path, lambda fields: Record(**fields))):
        if found.visit != index:
            raise UsageError(f"{path} has visit {found.visit} in line {index + 1}")
        yield found


def whole_lines(path: Path, made: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield an object for each line of JSON, without a torn last line."""
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


class Lines:
    """A file of JSON lines, begun empty. Each line reaches the operating system as it is added."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def add(self, fields: dict[str, Any]) -> None:
        self._file.write(json.dumps(fields).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def file_of(folder: Path, what: str, policy: str) -> Path:
    return folder / f"{what}-{quote(policy, safe='')}.jsonl"
