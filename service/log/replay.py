"""Reading a log: events and decision rows in order.

`pages` yields events as they are stored, `replay` decodes them, and `steps` also tells a fold where
it begins and where the log is damaged. Positions are dense, but for trimmed events before the first
one: an *origin* replaces them, a snapshot that a fold begins with. An erased event left a
`Tombstone`, which no fold can pass.

An event that cannot be folded stays in the log, and a later `Skipped` names its position. The marks
`skip/0`, `skip/1` and so on hold these positions, so that one query tells a reader of all of them
in advance. A skipped event is read as a `Skipped` that names its own position.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np
import numpy.typing as npt

from service.errors import LogGap, StoreError
from service.log.stores import Store
from service.log.stores.base import KeptRow, Record, Snapshot
from service.state.events import AnyEvent, Erased, Skipped, decode_event, has_erased
from service.state.fold import State

PAGE = 1_000
"""Events read at a time."""

ROWS_PER_PAGE = 200
"""Decision rows read at a time: of fifty arms they are 0.4 KiB each, of 10,000 arms some 60 KiB."""

Integers = Sequence[int] | npt.NDArray[np.int64]

SKIPS_PER_QUERY = 64
"""Marks of one query. Logs with a skipped event are rare, and have one or two."""

SLICE_SECONDS = 0.002
"""Longest time, in seconds, that a replay holds the event loop while requests wait."""


class Pace:
    """Lets other tasks work after each slice of a long one."""

    stopwatch = staticmethod(perf_counter)  # tests in virtual time set another

    def __init__(self) -> None:
        self._end = self.stopwatch() + SLICE_SECONDS

    async def keep(self) -> None:
        if self.stopwatch() > self._end:
            await asyncio.sleep(0)
            self._end = self.stopwatch() + SLICE_SECONDS


# -- skips -----------------------------------------------------------------------------------------


def skip_mark(number: int) -> str:
    """Return the identity of an experiment's `number`-th skip, from 0 on."""
    return f"skip/{number}"


async def skipped_positions(store: Store, experiment: str) -> frozenset[int]:
    """Positions of the events that must not be folded. Raises StoreUnavailable."""
    found = list[int]()
    while len(found) % SKIPS_PER_QUERY == 0:
        marks = [skip_mark(len(found) + number) for number in range(SKIPS_PER_QUERY)]
        known = await store.marks(experiment, marks)
        if not known:
            break
        found += [int(mark.value) for mark in known.values()]
    return frozenset(found)


def read_event(record: Record, skips: frozenset[int]) -> AnyEvent:
    """Read an event from its record. Raises Damaged or UnknownSchema."""
    if record.position in skips:
        return Skipped(at=0.0, position=record.position, reason="")
    return decode_event(record.payload)


# -- events ----------------------------------------------------------------------------------------


async def pages(store: Store, experiment: str, after: int = 0) -> AsyncIterator[list[Record]]:
    """Events after a position up to the end of the log, as they are stored. No page is empty."""
    while records := await store.read(experiment, after, PAGE):
        after, last = records[-1].position, len(records) < PAGE
        yield records
        if last:
            return


async def record_at(store: Store, experiment: str, position: int) -> Record | None:
    """Return the event at a position. None: it was trimmed, or has yet to come."""
    found = await store.read(experiment, position - 1, 1)
    return found[0] if found and found[0].position == position else None


def take_anchor(records: list[Record], position: int) -> Record | None:
    """Pop the resume record. A reader that continues reads its last event again, since a store may
    have come back as another one."""
    return records.pop(0) if records and records[0].position == position else None


async def replay(
    store: Store,
    experiment: str,
    after: int = 0,
    *,
    upto: float = inf,
    skips: frozenset[int] | None = None,
    dense: bool = False,
) -> AsyncIterator[tuple[int, AnyEvent]]:
    """Positions and events, in order and in slices.

    upto    the last position
    skips   positions of skipped events, where they are known
    dense   no event may be missing, the first one included

    Raises Damaged or UnknownSchema where an event cannot be read, LogGap where one is missing.
    """
    pace = Pace()
    if skips is None:
        skips = await skipped_positions(store, experiment)
    async for page in pages(store, experiment, after):
        for record in page:
            if record.position > upto:
                return
            if dense and record.position != after + 1:
                raise LogGap(f"experiment {experiment}: the log lacks position {after + 1}")
            after = record.position
            yield after, read_event(record, skips)
            await pace.keep()
        if after >= upto:
            return


async def erasures(
    store: Store, experiment: str, after: int, before: float = inf
) -> AsyncIterator[Erased]:
    """Yield the erasures logged between two positions."""
    if after + 1 < before:
        async for _, event in replay(store, experiment, after, upto=before - 1):
            if isinstance(event, Erased):
                yield event


async def origin_of(store: Store, experiment: str) -> Snapshot | None:
    """Return the snapshot that replaces trimmed and erased events."""
    kept = await store.snapshots(experiment)
    return next((snapshot for snapshot in kept if snapshot.origin), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One position of a log, for a fold from the beginning.

    event    None: the log begins after its origin, or has a fault here
    origin   the state at this position, to continue with; it holds the event
    waits    a fold has no state here: events before the origin were trimmed or erased
    fault    the event cannot be read, or is missing (LogGap); no later step has an origin
    """

    position: int
    event: AnyEvent | None = None
    origin: State | None = None
    waits: bool = False
    fault: StoreError | None = None


async def steps(
    store: Store, experiment: str, origin: State | None, *, past_tombstones: bool = False
) -> AsyncIterator[Step]:
    """Yield a step for each event, for the origin before the first one, and for each gap.

    past_tombstones   the caller passes over erased events; else its fold waits for the origin
    """
    last, waits, broken = 0, False, False
    skips = await skipped_positions(store, experiment)
    async for page in pages(store, experiment):
        for record in page:
            position = record.position
            if position != last + 1:
                if last == 0 and origin is not None and position <= origin.position + 1:
                    waits = position <= origin.position
                    if not waits:
                        yield Step(origin.position, origin=origin)
                else:
                    broken = True
                    told = f"the log goes on at position {position}"
                    yield Step(last + 1, fault=LogGap(told))
            last = position
            try:
                event = read_event(record, skips)
            except StoreError as fault:
                broken = True
                yield Step(position, waits=waits, fault=fault)
                continue
            if origin is not None and has_erased(event) and not past_tombstones:
                waits = waits or position < origin.position
            restarts = waits and origin is not None and position == origin.position
            waits = waits and not restarts
            yield Step(position, event, origin if restarts and not broken else None, waits)


# -- rows ------------------------------------------------------------------------------------------


async def row_pages(store: Store, experiment: str, after: int = 0) -> AsyncIterator[list[KeptRow]]:
    """Decision rows after a number, in their order. No page is empty."""
    while page := await store.decisions(experiment, after, ROWS_PER_PAGE):
        after = page[-1].number
        yield page


class RowsByPosition:
    """Decision rows in the order of the positions they were made at. They came nearly in that
    order, so one page, which is kept, serves many."""

    def __init__(
        self, store: Store, experiment: str, numbers: Integers, positions: Integers
    ) -> None:
        self._store, self._experiment = store, experiment
        self._numbers, self._positions = numbers, positions
        self._order = np.argsort(positions, kind="stable")
        self._next = 0
        self._page: dict[int, bytes] = {}

    async def up_to(self, position: float) -> AsyncIterator[tuple[int, int, bytes]]:
        """Index, position and payload of the rows up to a position that were not given yet. Raises
        LogGap where a row is gone."""
        while self._next < len(self._order):
            index = int(self._order[self._next])
            made_at = int(self._positions[index])
            if made_at > position:
                return
            self._next += 1
            yield index, made_at, await self._payload(int(self._numbers[index]))

    async def _payload(self, number: int) -> bytes:
        if number not in self._page:
            page = await self._store.decisions(self._experiment, number - 1, ROWS_PER_PAGE)
            self._page = {row.number: row.payload for row in page}
        if number not in self._page:
            raise LogGap(f"experiment {self._experiment}: decision row {number} went meanwhile")
        return self._page[number]
