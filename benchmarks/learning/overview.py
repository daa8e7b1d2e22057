"""All worlds in two tables: regret of each agent, and `auto` beside the best of all."""

from collections.abc import Collection, Iterable, Sequence
from math import isnan, nan
from statistics import fmean
from typing import Final

from benchmarks.learning.peers import PEERS
from benchmarks.learning.standing import Standing, place_of
from benchmarks.tables import Cells

AUTO: Final = "auto"
WITHIN: Final = 1.1, 1.0  # of the best: relatively, and in points of uniform's regret


def tables(standings: Sequence[Standing]) -> dict[str, Cells]:
    """Return the two tables by name. Only agents that played every world are in them, and in the
    first one the marks that have a place of their own, in the worlds that they played."""
    played = sorted(standings, key=_label)
    agents = set.intersection(*(set(standing.entries) for standing in played))
    agents -= {agent for agent in agents if agent in PEERS and PEERS[agent].informed}
    marks = {agent for standing in played for agent in standing.entries if place_of(agent)}
    return {"regret": _regret(played, agents | marks), "auto": _beside_auto(played, agents)}


def _label(standing: Standing) -> str:
    case = standing.case
    if case.data is not None:
        name = case.data.name.partition(".")[0]
        return name if case.world == "classification" else f"{name} in {case.world}"
    return f"{case.world}, shock" if case.shock_at is not None else case.world.replace("_", " ")


def _regret(played: Sequence[Standing], agents: set[str]) -> Cells:
    """Return the mean regret of each agent in each world, and over all of them; NaN where it did
    not play."""
    rows = {agent: [_regret_in(standing, agent) for standing in played] for agent in agents}
    ranked = sorted(agents, key=lambda agent: (place_of(agent), fmean(rows[agent])))
    cells = [["agent", "mean", *map(_label, played), "commit"]]
    for agent in ranked:
        regrets = _written((fmean(rows[agent]), *rows[agent]))
        cells.append([_name(agent), *regrets, _commits(played, [agent])])
    return cells


def _regret_in(standing: Standing, agent: str) -> float:
    return standing.entries[agent].regret if agent in standing.entries else nan


def _written(regrets: Iterable[float]) -> list[str]:
    return ["-" if isnan(regret) else f"{regret:.1f}" for regret in regrets]


def _commits(played: Sequence[Standing], agents: Collection[str]) -> str:
    """Return the commits of agents, each once."""
    entries = [
        standing.entries[agent]
        for standing in played
        for agent in agents
        if agent in standing.entries
    ]
    return ", ".join(sorted({entry.commit or "none" for entry in entries}))


def _beside_auto(played: Sequence[Standing], agents: set[str]) -> Cells:
    """Return `auto` beside the best agent of each world.

    The best agent of a stream is the one that is best on the other streams: the best one in
    hindsight would have the luck of its streams.
    """
    within_bounds = "`auto` is within bounds"
    cells = [["world", "`auto`", "worst", "best of all", "its regret", within_bounds, "commit"]]
    for standing in played:
        own = standing.entries[AUTO].known("relative_regret")
        regrets = {a: standing.entries[a].known("relative_regret") for a in agents}
        streams = range(min(map(len, regrets.values())))
        chosen = [
            min(sorted(regrets), key=lambda a: fmean([regrets[a][o] for o in streams if o != s]))
            for s in streams
        ]
        best = fmean([regrets[agent][s] for s, agent in zip(streams, chosen, strict=True)])
        relative, points = WITHIN
        within = fmean(own) <= max(best * relative, best + points)
        often = max(sorted(set(chosen)), key=chosen.count)
        cells.append(
            [
                _label(standing),
                f"{fmean(own):.1f}",
                f"{max(own):.1f}",
                _name(often),
                f"{best:.1f}",
                "yes" if within else "no",
                _commits([standing], {AUTO, often}),
            ]
        )
    return cells


def _name(agent: str) -> str:
    return agent if agent in PEERS else f"`{agent}`"
