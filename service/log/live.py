"""Live: an experiment that is being folded. Hooks: the calls that follow a commit or a fold."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from service.errors import Quarantined
from service.log.buffer import Pending
from service.state.checksum import extend, since
from service.state.events import AnyEvent
from service.state.fold import State

CHECKSUMS = 4_096
"""Folded events of which this process can tell whether the log still holds them."""


@dataclass(frozen=True, slots=True)
class End:
    """Of a log, as it was seen. rows: decision rows that were ever kept."""

    epoch: int
    position: int
    checksum: str
    rows: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Events that a log has lost.

    epoch   the last one that is known to have begun before
    kept    the log holds the events up to this position as they were; 0: not known which
    last    the last position that is known to have been lost
    rows    decision rows that are known to have been lost
    """

    epoch: int
    kept: int
    last: int
    rows: int = 0


@dataclass
class Live:
    """An experiment and the lock under which it is folded.

    recovered      it has been folded to the log's end once
    checksums      of the log after each of the last folded events, the newest last; the first of
                   a restored state is from before its last event
    caught_up_at   by the loop's clock: all events appended before then are folded
    skips          positions of events that must not be folded
    quarantine     why it is neither folded any further nor served
    rows           decision rows that the log was ever given, at least
    losses         times that the log had lost events
    loss           the last of these
    """

    state: State
    recovered: bool = False
    checksums: deque[str] = field(init=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    snapshot_position: int = 0
    caught_up_at: float = -inf
    skips: frozenset[int] = frozenset()
    quarantine: Quarantined | None = None
    rows: int = 0
    losses: int = 0
    loss: Loss | None = None

    def __post_init__(self) -> None:
        self.go_on_from(self.state)

    def go_on_from(self, state: State) -> None:
        """Replace the state by another one of the same log."""
        self.state = state
        self.checksums = deque(state.checksums, CHECKSUMS)

    def take(self, other: "Live") -> None:
        """Go on as another one of the same log."""
        self.go_on_from(other.state)
        self.checksums = other.checksums
        self.snapshot_position, self.rows = other.snapshot_position, other.rows
        self.skips, self.quarantine = other.skips, other.quarantine
        self.recovered = other.recovered

    @property
    def unreported_loss(self) -> Loss | None:
        """The last loss, until this process or another records it in the log."""
        return self.loss if self.loss is not None and self.state.epoch <= self.loss.epoch else None

    # -- what the log is known by --------------------------------------------------------------

    @property
    def checksum(self) -> str:
        """Of the log up to the last folded event; empty where it is not known."""
        return self.checksums[-1] if self.checksums else ""

    def extend(self, payload: bytes) -> None:
        """By an event that was folded."""
        self.checksums.append(extend(self.checksum, payload))

    def follows(self, before: str, checksum: str) -> bool:
        """As `agrees`, of the log without the event that was folded last, and with it."""
        if before != self.checksum and not self.agrees(before):
            return False
        self.checksums.append(checksum)
        return True

    def agrees(self, checksum: str) -> bool:
        """Whether the log, which has this checksum up to the state's position, may be the one that
        was folded. Where it is counted from another event than ours, it is taken over."""
        if since(checksum) != since(self.checksum):
            self.adopt(checksum)
        return checksum == self.checksum

    def adopt(self, checksum: str) -> None:
        self.checksums.clear()
        self.checksums.append(checksum)

    @property
    def knows_last(self) -> bool:
        """Whether `holds` can tell anything of the last folded event."""
        return len(self.checksums) > 1 and self.checksums[-2] != ""

    def holds(self, position: int, payload: bytes) -> bool:
        """Whether this event was folded at this position; False, too, where that is long ago."""
        back = self.state.position - position
        if not 0 <= back < len(self.checksums) - 1:
            return False
        return self.checksums[-1 - back] == extend(self.checksums[-2 - back], payload)

    def checksum_at(self, position: int) -> str:
        """Empty where it is not known any more."""
        back = self.state.position - position
        return self.checksums[-1 - back] if 0 <= back < len(self.checksums) else ""

    def shared(self, checksums: Sequence[str], position: int) -> int:
        """The last position at which the log had one of the checksums that it had before, which
        end at `position`; 0 where none is known."""
        before = {position - back: own for back, own in enumerate(reversed(checksums)) if own}
        for back, own in enumerate(reversed(self.checksums)):
            if before.get(self.state.position - back) == own:
                return self.state.position - back
        return 0


class Hooks:
    """The calls of writer and follower. All but `committed` run under the experiment's lock."""

    def committed(self, batch: Sequence[Pending]) -> None:
        """The log holds these entries, and none of them is folded yet."""

    def recovered(self, live: Live) -> None:
        """Snapshot and tail were folded, at the start or again."""

    def lost(self, live: Live, loss: Loss) -> None:
        """The log had lost events; the state is what it holds now."""

    def caught_up(self, live: Live) -> None:
        """The events at hand are folded, and none of them is acknowledged yet."""

    def folding(self, live: Live, event: AnyEvent) -> None:
        """This event comes next."""

    def folded(self, live: Live, event: AnyEvent) -> None: ...
