"""Events of a log as every reader has to see them: an event that was skipped changes nothing.

An event that cannot be folded stays in the log, and a later `Skipped` names its position. The
positions are found by marks: `skip/0` holds the first, `skip/1` the second, and so on, so that a
reader learns of all of them with one question, before it comes to any.
"""

from service.events import AnyEvent, Skipped, decode_event
from service.stores import Store
from service.stores.base import Record

AT_ONCE = 64
"""Marks asked for together. Logs with a skipped event are rare, and have one or two."""


def skip_mark(number: int) -> str:
    """The identity of the `number`-th skip of an experiment's log, from 0 on."""
    return f"skip/{number}"


async def skipped_positions(store: Store, experiment: str) -> frozenset[int]:
    """Positions of the events that must not be folded. Raises StoreUnavailable."""
    found = list[int]()
    while len(found) % AT_ONCE == 0:
        asked = [skip_mark(len(found) + number) for number in range(AT_ONCE)]
        known = await store.marks(experiment, asked)
        if not known:
            break
        found += [int(mark.value) for mark in known.values()]
    return frozenset(found)


def read_event(record: Record, skips: frozenset[int]) -> AnyEvent:
    """The event of a record; of a skipped one a `Skipped` that names its own position.

    Raises Damaged or LogTooNew.
    """
    if record.position in skips:
        return Skipped(at=0.0, position=record.position, reason="")
    return decode_event(record.payload)
