"""Who waits for an entry on its way into the log, and how they are told."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from service.errors import Quarantined
from service.log.stores.base import Appended, DecisionRow, Entry, Outcome
from service.state.events import AnyEvent, Skipped

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Held(msgspec.Struct, frozen=True):
    """What stands under a decision's id. logged: in the log; else it waits in memory or is lost."""

    payload: bytes
    logged: bool


class Told(Protocol):
    """As much of a future as the writer asks of one."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Exception, /) -> None: ...


class Call:
    """In place of a future, where nobody awaits: it calls at once, not in a turn of the loop.

    then: takes the result, or the exception
    """

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then: Callable[[Any], None] | None = then

    def done(self) -> bool:
        return self._then is None

    def set_result(self, result: Any, /) -> None:
        then, self._then = self._then, None
        assert then is not None
        try:
            then(result)
        except Exception:  # it must not keep others from their answers
            logger.exception("a waiting request failed")

    set_exception = set_result


async def tell(work: Awaitable[T], then: Callable[[T | Exception], None]) -> None:
    """Give the result, or the exception, to a caller who does not await: once, whatever it does."""
    try:
        result: T | Exception = await work
    except Exception as fault:
        result = fault
    then(result)


class Waiting:
    """An entry on its way into the log.

    row        of a decision that may be answered before it is there; else None
    done       what the log says of it (of a row Held), or what was answered without the log
    deadline   of such a row, by the loop's clock
    """

    __slots__ = ("deadline", "done", "entry", "event", "row")

    def __init__(self, entry: Entry, event: AnyEvent | None, done: Told) -> None:
        self.entry, self.event, self.done = entry, event, done
        self.row: DecisionRow | None = None
        self.deadline = 0.0


def told_of(stopped: Quarantined, waiting: Waiting, outcome: Outcome) -> Outcome | Quarantined:
    """The answer for an entry that the log took, of a quarantined experiment: an event at or after
    the one that it is quarantined for is not folded yet."""
    if not isinstance(outcome, Appended) or isinstance(waiting.event, Skipped):
        return outcome
    return stopped if outcome.position >= stopped.position else outcome
