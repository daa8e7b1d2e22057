"""A store copied into an empty one by its parts, as of one instant of each experiment, while
services write.

What only grows (events, decision rows, marks) is read in pages up to the instant; what changes
(what is due, counts) is read at the instant, at once. Where retention or an erasure removes
something meanwhile, the copy is discarded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from service.errors import LogGap, StoreError
from service.log.reading import Progress
from service.log.replay import PAGE, pages, record_at, row_pages
from service.log.stores import Store
from service.log.stores.base import Instant, KeptMark, KeptRow, Part, Record, Snapshot
from service.log.stores.store import START
from service.serving.audit_report import aligned
from service.serving.chain import activation_mark, link_mark
from service.state.events import Decision, Erased, decode_decision, decode_event

T = TypeVar("T")

PART_BYTES = 1_000_000
"""Of payloads written at once: some milliseconds of a disk, far from what a store waits for."""
ID_CHARACTERS = 22


class RemovedMeanwhileError(Exception):
    """Retention or an erasure removed what was yet to be copied, or may have."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy holds of one experiment: events up to a position, decision rows, and how many of
    these are due."""

    experiment: str
    position: int
    decisions: int
    due: int


def copied_of(name: str, instant: Instant) -> Copied:
    gone = instant.removed.trimmed + instant.removed.erased
    due = sum(time is not None for time in instant.due.values())
    return Copied(name, instant.position, sum(instant.counts.values()) - gone, due)


def table(copied: Sequence[Copied]) -> str:
    """One line an experiment."""
    counts = [
        (each.experiment, f"{each.position:,}", f"{each.decisions:,}", f"{each.due:,}")
        for each in copied
    ]
    return "\n".join(aligned([("experiment", "position", "decisions", "due"), *counts]))


async def copy(source: Store, target: Store, progress: Progress) -> list[Copied]:
    """All but the secret, into an open store that holds nothing. Raises RemovedMeanwhileError."""
    names = await source.experiments()
    return [await _Copy(source, target, name, progress).run() for name in names]


class _Copy:
    """Of one experiment."""

    def __init__(self, source: Store, target: Store, name: str, progress: Progress) -> None:
        self._source, self._target, self._name = source, target, name
        self._progress = progress

    async def run(self) -> Copied:
        source, target, name = self._source, self._target, self._name
        snapshots = await source.snapshots(name)  # before the instant: none is of a later position
        instant = await source.describe(name, whole=True)
        for key in await source.blob_keys(name):
            if (blob := await source.blob(name, key)) is not None:
                await target.put_blob(name, key, blob)
        await self._events(instant.position, snapshots)
        await self._rows(instant.row)
        late = await self._activations(instant, await self._marks(instant.position))
        due = {**instant.due, **late}
        for part in _parts(list(due.items()), lambda _: PART_BYTES // PAGE):
            await target.put(name, Part(due=dict(part)))
        for snapshot in reversed(snapshots):
            await target.save_snapshot(name, snapshot)
        last = Part(
            counts=instant.counts,
            removed=instant.removed,
            position=instant.position,
            checksum=instant.checksum,
        )
        await target.put(name, last)
        await self._expect_nothing_removed(instant)
        return copied_of(name, replace(instant, due=due))

    async def _events(self, upto: int, snapshots: Sequence[Snapshot]) -> None:
        """All up to a position, or those that follow an origin. Raises LogGap where one is missing
        between them."""
        begins = max([0, *(each.position for each in snapshots if each.origin)])
        position = None
        async for page in pages(self._source, self._name):
            records = [record for record in page if record.position <= upto]
            for record in records:
                if position is None and record.position > begins + 1:
                    raise RemovedMeanwhileError
                if position is not None and record.position != position + 1:
                    await self._refuse_gap(position, record.position)
                position = record.position
            for part in _parts(records, _size):
                await self._target.put(self._name, Part(events=part))
            self._progress.tell(f"{self._name}: events {position or 0:,} of {upto:,}")
            if len(records) < len(page):
                break
        if (position or 0) < upto > begins:
            raise RemovedMeanwhileError

    async def _refuse_gap(self, before: int, position: int) -> None:
        """Raises RemovedMeanwhileError where what was read last is gone too by now, else LogGap."""
        if await record_at(self._source, self._name, before) is None:
            raise RemovedMeanwhileError
        raise LogGap(f"experiment {self._name}: position {position} follows {before} in the log")

    async def _rows(self, upto: int) -> None:
        copied = 0
        async for page in row_pages(self._source, self._name):
            rows = [row for row in page if row.number <= upto]
            for part in _parts(rows, _size):
                await self._target.put(self._name, Part(rows=part))
            copied += len(rows)
            self._progress.tell(f"{self._name}: decisions {copied:,}")
            if len(rows) < len(page):
                break

    async def _marks(self, upto: int) -> list[KeptMark]:
        """Copies all up to a position but those of activations, which have none: returns these."""
        activations, cursor, copied = list[KeptMark](), START, 0
        while True:
            page, cursor = await self._source.list_marks(self._name, cursor, PAGE)
            marks = list[KeptMark]()
            for mark in page:
                if mark.position <= upto:
                    (activations if _is_activation(mark) else marks).append(mark)
            await self._put_marks(marks)
            copied += len(marks)
            self._progress.tell(f"{self._name}: marks {copied:,}")
            if not cursor:
                return activations

    async def _put_marks(self, marks: Sequence[KeptMark]) -> None:
        for part in _parts(marks, lambda mark: len(mark.identity) + len(mark.value)):
            await self._target.put(self._name, Part(marks=part))

    async def _activations(
        self, instant: Instant, activations: Sequence[KeptMark]
    ) -> dict[str, float | None]:
        """Copies the marks of activations of decisions in the copy. Returns what is due of those
        activated after the instant, whose default reward would be lost."""
        late, marks = dict[str, float | None](), list[KeptMark]()
        for mark in activations:
            decision = mark.identity[:ID_CHARACTERS]
            payload = await self._target.decision(self._name, decision)
            if payload is None and await self._source.decision(self._name, decision) is not None:
                continue
            marks.append(mark)
            if payload is not None and decision not in instant.due:
                with suppress(StoreError):  # a damaged row gets no default reward
                    row = decode_decision(payload)
                    if not await self._settled_before(instant, row):
                        late[decision] = row.reward_by
        await self._put_marks(marks)
        return late

    async def _settled_before(self, instant: Instant, decision: Decision) -> bool:
        """A decision with a reward by the instant was activated before it."""
        links = [link_mark(decision.id, 0, arm.arm) for arm in decision.shown]
        marks = await self._source.marks(self._name, links)
        return any(mark.position <= instant.position for mark in marks.values())

    async def _expect_nothing_removed(self, instant: Instant) -> None:
        if (await self._source.describe(self._name)).removed != instant.removed:
            raise RemovedMeanwhileError
        async for page in pages(self._source, self._name, instant.position):
            if any(_is_erasure(record) for record in page):
                raise RemovedMeanwhileError


def _is_activation(mark: KeptMark) -> bool:
    return mark.identity == activation_mark(mark.identity[:ID_CHARACTERS])


def _is_erasure(record: Record) -> bool:
    with suppress(StoreError):
        return isinstance(decode_event(record.payload), Erased)
    return False


def _size(item: Record | KeptRow) -> int:
    return len(item.payload)


def _parts(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """In order, of at most PAGE items and not much more than PART_BYTES each."""
    part, held = list[T](), 0
    for item in items:
        part.append(item)
        held += size(item)
        if held >= PART_BYTES or len(part) == PAGE:
            yield part
            part, held = [], 0
    if part:
        yield part
