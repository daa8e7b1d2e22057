"""Entries on their way into the log, and the requests that wait for them."""

import asyncio
from typing import Any

import msgspec

from service.errors import Quarantined
from service.log.stores.base import Appended, DecisionRow, Entry, Outcome
from service.state.events import AnyEvent, Skipped


class Held(msgspec.Struct, frozen=True):
    """What stands under a decision's id. logged: in the log; else it waits in memory or is lost."""

    payload: bytes
    logged: bool


class Waiting:
    """An entry on its way into the log.

    row        of a decision that may be answered before it is there; else None
    done       what the log says of it (of a row Held), or what was answered without the log
    deadline   of such a row, by the loop's clock
    """

    __slots__ = ("deadline", "done", "entry", "event", "row")

    def __init__(self, entry: Entry, event: AnyEvent | None, done: asyncio.Future[Any]) -> None:
        self.entry, self.event, self.done = entry, event, done
        self.row: DecisionRow | None = None
        self.deadline = 0.0


def told_of(stopped: Quarantined, waiting: Waiting, outcome: Outcome) -> Outcome | Quarantined:
    """The answer for an entry that the log took, of a quarantined experiment: an event at or after
    the one that it is quarantined for is not folded yet."""
    if not isinstance(outcome, Appended) or isinstance(waiting.event, Skipped):
        return outcome
    return stopped if outcome.position >= stopped.position else outcome
