"""Live: an experiment that is being folded. Observer: what reacts to its fold."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from math import inf

from service.errors import Quarantined
from service.state.events import AnyEvent
from service.state.fold import State

ANCHORS = 4_096
"""Folded events of which this process can tell whether the log still holds them."""


@dataclass
class Live:
    """An experiment and the lock under which it is folded.

    recovered      it has been folded to the log's end once
    anchors        `anchor_of` the last folded events, the newest last
    caught_up_at   by the loop's clock: all events appended before then are folded
    skips          positions of events that must not be folded
    quarantine     why it is neither folded any further nor served
    losses         times that the log had lost folded events
    """

    state: State
    recovered: bool = False
    anchors: deque[bytes] = field(default_factory=lambda: deque(maxlen=ANCHORS))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    snapshot_position: int = 0
    caught_up_at: float = -inf
    skips: frozenset[int] = frozenset()
    quarantine: Quarantined | None = None
    losses: int = 0

    @property
    def anchor(self) -> bytes:
        """`anchor_of` the last folded event; empty where it is not known."""
        return self.anchors[-1] if self.anchors else self.state.anchor


class Observer:
    """Reacts to what a follower folds. Its methods run under the experiment's lock."""

    def recovered(self, live: Live) -> None:
        """Snapshot and tail were folded, at first or anew."""

    def lost(self, live: Live) -> None:
        """The log had lost folded events; the state is what it holds now."""

    def folding(self, live: Live, event: AnyEvent) -> None:
        """This event comes next."""

    def folded(self, live: Live, event: AnyEvent) -> None: ...
