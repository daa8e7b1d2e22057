"""The table of worlds, and what all of them share."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Asked, Outcome, Reference, Stream, World
from simulator_client.worlds.classification import LABEL, Classification
from simulator_client.worlds.logged import Logged
from simulator_client.worlds.ranking import Ranking
from simulator_client.worlds.synthetic import Synthetic
from simulator_client.worlds.zooplus import Zooplus

__all__ = ["WORLDS", "Outcome", "Reference", "Stream", "World", "make_world"]

FROM_DATA: Final[dict[str, Callable[[Path, Asked], World[Any]]]] = {
    Classification.name: lambda path, asked: Classification(
        path, asked.label or LABEL, risky=asked.risky
    ),
    Logged.name: lambda path, asked: Logged(path),
    Synthetic.name: lambda path, asked: Synthetic(path, asked.seed, asked.clicks, asked.effects),
}
FILES: Final = {
    Classification.name: "a CSV with a header",
    Logged.name: "a log in the Open Bandit form",
    Synthetic.name: "an experiment file (forage init)",
}
FROM_SEED: Final[dict[str, Callable[[Asked], World[Any]]]] = {
    Zooplus.name: lambda asked: Zooplus(asked.seed, asked.shock_at),
    Ranking.name: lambda asked: Ranking(asked.seed),
}
WORLDS: Final = FROM_DATA.keys() | FROM_SEED.keys()


def make_world(
    name: str,
    seed: int,
    shock_at: int | None = None,
    data: Path | None = None,
    *,
    label: str | None = None,
    risky: bool = False,
    clicks: float | None = None,
    effects: str | None = None,
) -> World[Any]:
    """Return the world `name` drawn from `seed`, or read from `data`.

    Raises UsageError for an unknown name, and for what the world has no use for.
    """
    if name not in WORLDS:
        raise UsageError(f"unknown world {name!r}; known: {', '.join(sorted(WORLDS))}")
    if shock_at is not None and name != Zooplus.name:
        raise UsageError(f"world {name} has no market shock")
    if data is not None and name not in FROM_DATA:
        raise UsageError(
            f"world {name} reads no data; --data is for {', '.join(sorted(FROM_DATA))}"
        )
    if data is None and name in FROM_DATA:
        raise UsageError(f"world {name} needs --data FILE, {FILES[name]}")
    if (label is not None or risky) and name != Classification.name:
        raise UsageError(f"--label and --risky are for world {Classification.name}, not {name}")
    asked = Asked(seed, shock_at, data, label, risky)
    if name == Synthetic.name:
        asked = asked._replace(clicks=clicks or asked.clicks, effects=effects or asked.effects)
    elif clicks is not None or effects is not None:
        raise UsageError(f"--clicks and --effects are for world {Synthetic.name}, not {name}")
    return _made(name, asked)


@lru_cache(maxsize=4)
def _made(name: str, asked: Asked) -> World[Any]:
    # Worlds never change, and a showdown asks for the same one again and again.
    if asked.data is not None:
        return FROM_DATA[name](asked.data, asked)
    return FROM_SEED[name](asked)
