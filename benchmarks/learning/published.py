"""Published comparisons: one file a case, with the figures of every stream and, of the agents that
a plot shows, the band of their courses. Raw runs stay outside git.
"""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any, Final

from benchmarks.learning.runs import Case
from benchmarks.learning.tables import Standing
from simulator_client.journal import write_whole

SCHEMA: Final = 1
ABOUT: Final = ("peer", "by", "settings", "code")


def read(folder: Path) -> dict[str, Standing]:
    """The published comparisons, by case."""
    standings = {}
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        standing = standings[path.stem] = Standing(Case(**kept["case"]))
        for agent, found in kept["agents"].items():
            about = {name: found[name] for name in ABOUT}
            for seed, figures in found["streams"].items():
                standing.add(about | {"agent": agent, "seed": int(seed), "figures": figures})
            if "bands" in found:
                standing.bands[agent] = found["bands"]
    return standings


def replace(standings: dict[str, Standing], runs: Path) -> None:
    """Put the raw runs of a folder in the place of what is published of their agents."""
    seen = set()
    for path in sorted(runs.glob("*/*.json")):
        record = json.loads(path.read_text())
        case, agent = path.parent.name, record["agent"]
        standing = standings.setdefault(case, Standing(Case(**record["case"])))
        if (case, agent) not in seen:
            seen.add((case, agent))
            standing.runs.pop(agent, None)
            standing.bands.pop(agent, None)
        standing.add(record)


def write(standings: dict[str, Standing], folder: Path, pictured: Container[str]) -> None:
    """One file a case. pictured: names of the cases with a plot."""
    from benchmarks.learning.pictures import bands_of, shown  # matplotlib costs a second

    folder.mkdir(parents=True, exist_ok=True)
    for name, standing in standings.items():
        drawn = shown(standing) if name in pictured else ()
        agents: dict[str, Any] = {}
        for agent, runs in sorted(standing.runs.items()):
            agents[agent] = {each: runs[0][each] for each in ABOUT}
            agents[agent]["streams"] = {str(run["seed"]): run["figures"] for run in runs}
            if agent in drawn:
                agents[agent]["bands"] = bands_of(standing, agent)
        about = _case(standing.case)
        lines = [f"{json.dumps(agent)}: {json.dumps(found)}" for agent, found in agents.items()]
        text = f'{{"schema": {SCHEMA}, "case": {json.dumps(about)}, "agents": {{\n'
        write_whole(folder / f"{name}.json", text + ",\n".join(lines) + "\n}}\n")


def _case(case: Case) -> dict[str, Any]:
    """A case as JSON has it."""
    data = None if case.data is None else Path(case.data).name
    return {
        "world": case.world,
        "visits": case.visits,
        "world_seed": case.world_seed,
        "shock_at": case.shock_at,
        "data": data,
    }
