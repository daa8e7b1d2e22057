"""The table of worlds, and what all of them share."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Asked, Outcome, Reference, Stream, World
from simulator_client.worlds.classification import Classification
from simulator_client.worlds.logged import Logged
from simulator_client.worlds.ranking import Ranking
from simulator_client.worlds.synthetic import Synthetic
from simulator_client.worlds.zooplus import Zooplus

__all__ = ["WORLDS", "Outcome", "Reference", "Stream", "World", "make_world"]

# name -> the world that is asked for
WORLDS: Final[dict[str, Callable[[Asked], World[Any]]]] = {
    Zooplus.name: Zooplus.of,
    Ranking.name: Ranking.of,
    Classification.name: Classification.of,
    Logged.name: Logged.of,
    Synthetic.name: Synthetic.of,
}
FROM_DATA: Final = frozenset({Classification.name, Logged.name, Synthetic.name})


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
    """The world `name` drawn from `seed`, or read from `data`.

    Raises UsageError for an unknown name, and for what the world has no use for.
    """
    if name not in WORLDS:
        raise UsageError(f"unknown world {name!r}; known: {', '.join(sorted(WORLDS))}")
    if data is not None and name not in FROM_DATA:
        raise UsageError(
            f"world {name} reads no data; --data is for {', '.join(sorted(FROM_DATA))}"
        )
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
    return WORLDS[name](asked)
