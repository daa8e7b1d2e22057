"""What is played: cases (a world and its visits), runs in them, and their files.

OUT/<case>/<agent>.<seed>.json     one run: what it was, figures, a thinned course
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

import service
from benchmarks.learning.course import Agent, curve, figures, play
from benchmarks.learning.peers import PEERS, LeftOut, guest
from service.definition.experiment import Definition
from simulator_client.errors import UsageError
from simulator_client.journal import write_whole
from simulator_client.worlds import World, make_world

SCHEMA: Final = 1
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A world, and how many of its visits are played."""

    world: str
    visits: int
    world_seed: int = 42
    shock_at: int | None = None
    data: Path | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        drawn = f"{self.world}-w{self.world_seed}"
        base = drawn if self.data is None else self.data.name.split(".")[0]
        shock = "" if self.shock_at is None else f"-shock{self.shock_at}"
        return f"{base}-v{self.visits}{shock}"

    @property
    def title(self) -> str:
        """For people."""
        what = self.world if self.data is None else f"{self.world}: {self.data.name}"
        shock = "" if self.shock_at is None else f", market shock at visit {self.shock_at:,}"
        return f"{what}, {self.visits:,} visits{shock}"

    def make(self) -> World[Any]:
        """The world."""
        return make_world(self.world, self.world_seed, self.shock_at, self.data)


@dataclass(frozen=True)
class Run:
    """One agent on one stream of a case.

    settings   a policy's, as the definition has them; None: a peer
    """

    case: Case
    agent: str
    seed: int
    settings: Mapping[str, Any] | None

    @property
    def peer(self) -> bool:
        return self.settings is None

    def path(self, out: Path) -> Path:
        return out / self.case.name / f"{self.agent}.{self.seed}.json"

    def found(self, out: Path) -> Record | None:
        """The run as it was played before; None where it was not, or with other settings."""
        path = self.path(out)
        if not path.exists():
            return None
        record: Record = json.loads(path.read_text())
        same = record["schema"] == SCHEMA and record["peer"] == self.peer
        return record if same and record["settings"] == self.settings else None

    def play(self, out: Path) -> Record:
        """Play it and keep it. Raises LeftOut where the peer cannot."""
        world = self.case.make()
        course = play(world, self._agent(world), self.seed, self.case.visits)
        told = asdict(self.case) | {"data": self.case.data and self.case.data.name}
        record = {
            "schema": SCHEMA,
            "case": told,
            "agent": self.agent,
            "peer": self.peer,
            "by": PEERS[self.agent].release if self.peer else "forage",
            "settings": self.settings,
            "code": None if self.peer else code(),
            "seed": self.seed,
            "figures": figures(course, world.references(self.case.visits), self.case.shock_at),
            "curve": curve(course),
            "eigenvalues": [list(pair) for pair in course.eigenvalues],
        }
        path = self.path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(record) + "\n")
        return record

    def _agent(self, world: World[Any]) -> Agent:
        if self.settings is None:
            return guest(world, self.agent, self.seed)
        from benchmarks.learning.forage import Forage

        return Forage(world.definition([self.agent], {self.agent: self.settings}))


@cache
def code() -> str:
    """A fingerprint of the service's code, which decides what our policies come to."""
    total = hashlib.sha256()
    for path in sorted(Path(service.__file__).parent.rglob("*.py")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:16]


def settings_of(
    world: World[Any], policy: str, own: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What a policy's name stands for in a world. Raises LeftOut where it does not fit."""
    try:
        definition = world.definition([policy], own)
        Definition.model_validate(definition)
    except UsageError as error:
        raise LeftOut(str(error)) from error
    except ValidationError as error:
        raise LeftOut(error.errors()[0]["msg"]) from error
    settings: dict[str, Any] = definition["policies"][policy]
    return settings
