"""A saved fold, as stores keep it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved fold. origin: a replay begins here, for what came before may have been taken out."""

    position: int
    payload: bytes = field(repr=False)
    origin: bool = False
