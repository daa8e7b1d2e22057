"""The table of worlds, and what all of them share."""

from collections.abc import Callable
from typing import Any

from simulator_client.errors import UsageError
from simulator_client.worlds.base import Outcome, Reference, Stream, World
from simulator_client.worlds.zooplus import Zooplus

__all__ = ["WORLDS", "Outcome", "Reference", "Stream", "World", "make_world"]

# name -> world of a seed, with a shock at a visit (None: never)
WORLDS: dict[str, Callable[[int, int | None], World[Any]]] = {
    Zooplus.name: Zooplus,
}


def make_world(name: str, seed: int, shock_at: int | None = None) -> World[Any]:
    """The world `name` drawn from `seed`."""
    if name not in WORLDS:
        raise UsageError(f"unknown world {name!r}; known: {', '.join(sorted(WORLDS))}")
    return WORLDS[name](seed, shock_at)
