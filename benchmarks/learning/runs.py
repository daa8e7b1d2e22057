"""Cases (a world and its visits), the runs in them, and the file of each run.

OUT/<case>/<agent>.<seed>.json
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from benchmarks.commits import ROOT, commit_of
from benchmarks.learning.course import Agent, Course, curve, figures, play
from benchmarks.learning.forage import Forage
from benchmarks.learning.peers import PEERS, LeftOut, guest
from benchmarks.learning.worlds import world_of
from service.definition.experiment import Definition
from simulator_client.errors import UsageError
from simulator_client.journal import write_whole
from simulator_client.worlds import World

Record = dict[str, Any]

LEARNING: Final = Path("benchmarks", "learning")
# The code that figures depend on: of every agent, and of our policies too.
SHARED: Final = (
    Path("simulator_client"),
    *(LEARNING / name for name in ("peers", "course.py", "forage.py", "worlds.py")),
)
SERVICE: Final = Path("service")
OPENING: Final = 500  # visits of the short replay: a second or two a row


@dataclass(frozen=True)
class Case:
    """A world, and the number of its visits. data: of `classification` and `thirds`."""

    world: str
    visits: int
    world_seed: int = 42
    shock_at: int | None = None
    data: Path | None = None

    @property
    def name(self) -> str:
        if self.data is None:
            base = f"{self.world}-w{self.world_seed}"
        else:
            base = self.data.name.partition(".")[0]
            base += "" if self.world == "classification" else f"-{self.world}"
        shock = "" if self.shock_at is None else f"-shock{self.shock_at}"
        return f"{base}-v{self.visits}{shock}"

    @property
    def title(self) -> str:
        what = self.world if self.data is None else f"{self.world}: {self.data.name}"
        shock = "" if self.shock_at is None else f", market shock at visit {self.shock_at:,}"
        return f"{what}, {self.visits:,} visits{shock}"

    def make(self) -> World[Any]:
        return world_of(self.world, self.world_seed, self.shock_at, self.data)


@dataclass(frozen=True)
class Run:
    """One agent on one stream of a case.

    origin   what the result depends on: `by` (forage, or the release of a library), `code`, and
             of our policies `settings`
    """

    case: Case
    agent: str
    seed: int
    origin: Record

    def path(self, out: Path) -> Path:
        return out / self.case.name / f"{self.agent}.{self.seed}.json"

    def found(self, out: Path) -> Record | None:
        """Return the record of the run if it was played before from the same origin.

        A record of code that was not committed gives way once that code is.
        """
        path = self.path(out)
        record: Record = json.loads(path.read_text()) if path.exists() else {"origin": None}
        if record["origin"] != self.origin or (record["commit"] is None and commit()):
            return None
        return record

    def play(self, out: Path) -> Record:
        """Play the run and keep its record. Raises LeftOut if the peer cannot play."""
        measured = commit()  # now: the files may change while the run goes on
        case, world = self.case, self.case.make()
        course = play(world, self._agent(world), self.seed, case.visits)
        oracle_ctr = world.references(case.visits)[-1].oracle_ctr
        record = {
            "agent": self.agent,
            "seed": self.seed,
            "origin": self.origin,
            "commit": measured,
            "opening": opening(course),
            "figures": figures(course, oracle_ctr, case.shock_at),
            "curve": curve(course),
        }
        path = self.path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(record) + "\n")
        return record

    def replay(self) -> float:
        """Play the first OPENING visits alone, and return what `opening` has of the whole run."""
        world = self.case.make()
        visits = min(OPENING, self.case.visits)
        return opening(play(world, self._agent(world), self.seed, visits))

    def _agent(self, world: World[Any]) -> Agent:
        if self.agent in PEERS:
            return guest(world, self.agent, self.seed, self.case.visits)
        return Forage(world.definition([self.agent], {self.agent: self.origin["settings"]}))


def opening(course: Course) -> float:
    """Return the expected reward of the first OPENING visits, added up: the digits that a short
    replay must give again."""
    return round(float(course.expected[:OPENING].sum()), 9)


@cache
def code(*paths: Path) -> str:
    """Return a fingerprint of the Python code below paths of the repository."""
    total = hashlib.sha256()
    for path in paths:
        for file in sorted((ROOT / path).rglob("*.py")) or [ROOT / path]:
            total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()[:16]


def commit() -> str | None:
    """Return the newest commit of the code that figures depend on; None if it was changed since."""
    return commit_of(*map(str, SHARED), str(SERVICE))


def origin_of(world: World[Any], agent: str, own: Mapping[str, Mapping[str, Any]]) -> Record:
    """Return the origin of an agent's runs. own: settings by the name of a policy.

    Raises LeftOut if the agent cannot play in the world.
    """
    if agent in PEERS:
        return {"by": PEERS[agent].release, "code": code(*SHARED)}
    try:
        definition = world.definition([agent], own)
        Definition.model_validate(definition)
    except UsageError as error:
        raise LeftOut(str(error)) from error
    except ValidationError as error:
        raise LeftOut(error.errors()[0]["msg"]) from error
    settings = definition["policies"][agent]
    return {"by": "forage", "settings": settings, "code": code(*SHARED, SERVICE)}
