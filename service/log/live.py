"""Live: an experiment that is being folded."""

import asyncio
from dataclasses import dataclass, field
from math import inf

from service.errors import Quarantined
from service.log.stores.base import digest
from service.state.events import LogTruncated
from service.state.fold import State


@dataclass
class Live:
    """An experiment and the lock under which it is folded.

    recovered      it has been folded to the log's end once
    digest         of the last folded event; empty where it is not known
    caught_up_at   by the loop's clock: all events appended before then are folded
    skips          positions of events that must not be folded
    quarantine     why it is neither folded any further nor served
    row            the highest number of a decision row that this process knows
    losses         times that the log had lost events or decision rows
    lost_to        the last position that this process knows to have been lost
    unlogged       losses that the log does not tell of yet
    """

    state: State
    recovered: bool = False
    digest: str = field(init=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    snapshot_position: int = 0
    caught_up_at: float = -inf
    skips: frozenset[int] = frozenset()
    quarantine: Quarantined | None = None
    row: int = 0
    losses: int = 0
    lost_to: int = 0
    unlogged: list[LogTruncated] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.go_on_from(self.state)

    def go_on_from(self, state: State) -> None:
        """Replace the state by another one of the same log."""
        self.state, self.digest = state, state.digest

    def take(self, other: "Live") -> None:
        """Go on as another one of the same log."""
        self.go_on_from(other.state)
        self.digest, self.snapshot_position = other.digest, other.snapshot_position
        self.skips, self.quarantine = other.skips, other.quarantine
        self.recovered, self.row = other.recovered, other.row

    @property
    def known_to(self) -> int:
        """The last position that the log has, or is known to have had."""
        return max(self.state.position, self.state.lost_to, self.lost_to)

    def holds_last(self, payload: bytes) -> bool:
        """Whether this event is the last folded one, as far as that is known."""
        return self.digest in ("", digest(payload))
