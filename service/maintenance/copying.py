"""A store copied into an empty one by its parts, as of one instant of each experiment, while
services write.

What is only ever added to (events, decision rows, marks) is read up to the instant, in pages; what
changes (what is due, counts) is read at the instant, at once. Where something is taken out
meanwhile, the copy counts for nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TypeVar

from service.errors import LogGap, StoreError
from service.log.replay import PAGE, pages, record_at, row_pages
from service.log.stores import Store
from service.log.stores.base import KeptRow, Record, Snapshot
from service.log.stores.keeping import Instant, KeptMark, Part
from service.log.stores.store import START
from service.serving.chain import activation_mark, link_mark
from service.serving.findings import aligned
from service.state.events import Erased, decode_decision, decode_event

T = TypeVar("T")

PART_BYTES = 1_000_000
"""Of payloads written at once: some milliseconds of a disk, far from what a store waits for."""
ID_CHARACTERS = 22
SAY_SECONDS = 0.2

Say = Callable[[str], None]
"""Takes one line of progress."""


class TakenOutError(Exception):
    """Retention or an erasure took out meanwhile what was yet to be copied, or might have been."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy holds of one experiment: events up to a position, decision rows, and of these
    the ones that are due."""

    experiment: str
    position: int
    decisions: int
    due: int


def copied_of(name: str, instant: Instant) -> Copied:
    gone = instant.removed.trimmed + instant.removed.erased
    due = sum(time is not None for time in instant.due.values())
    return Copied(name, instant.position, sum(instant.counts.values()) - gone, due)


class Progress:
    """Says how far it is, now and then."""

    def __init__(self, say: Say | None) -> None:
        self._say, self._said = say, -inf

    def tell(self, line: str) -> None:
        if self._say and monotonic() > self._said + SAY_SECONDS:
            self._say(line)
            self._said = monotonic()

    def pages(self, done: int, total: int) -> None:
        self.tell(f"pages copied {done:,} of {total:,}")


def table(copied: Sequence[Copied]) -> str:
    """One line an experiment."""
    rows = [["experiment", "position", "decisions", "due"]]
    rows += [
        [each.experiment, f"{each.position:,}", f"{each.decisions:,}", f"{each.due:,}"]
        for each in copied
    ]
    return "\n".join(aligned(rows))


async def copy(source: Store, target: Store, progress: Progress) -> list[Copied]:
    """Into an open store that holds nothing; all but the secret. Raises TakenOutError."""
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
        instant = await source.instant(name)
        await self._blobs()
        await self._events(instant.position, snapshots)
        await self._rows(instant.row)
        activations = await self._marks(instant.position)
        late = await self._activations(instant, activations)
        due = {**instant.due, **late}
        for part in _parts(list(due.items()), lambda _: PART_BYTES // PAGE):
            await target.put(name, Part(due=dict(part)))
        for snapshot in reversed(snapshots):
            await target.save_snapshot(name, snapshot)
        last = Part(counts=instant.counts, removed=instant.removed, position=instant.position)
        await target.put(name, last)
        await self._expect_nothing_taken_out(instant)
        return copied_of(name, replace(instant, due=due))

    async def _blobs(self) -> None:
        for key in await self._source.blob_keys(self._name):
            payload = await self._source.blob(self._name, key)
            if payload is not None:
                await self._target.put_blob(self._name, key, payload)

    async def _events(self, upto: int, snapshots: Sequence[Snapshot]) -> None:
        """All up to a position, or those that follow an origin. Raises LogGap where one is missing
        between them."""
        begins = max([0, *(each.position for each in snapshots if each.origin)])
        position = None
        async for page in pages(self._source, self._name):
            records = [record for record in page if record.position <= upto]
            for record in records:
                if position is None and record.position > begins + 1:
                    raise TakenOutError
                if position is not None and record.position != position + 1:
                    await self._tell_gap(position, record.position)
                position = record.position
            for part in _parts(records, _size):
                await self._target.put(self._name, Part(events=part))
            self._progress.tell(f"{self._name}: events {position or 0:,} of {upto:,}")
            if len(records) < len(page):
                break
        if (position or 0) < upto > begins:
            raise TakenOutError

    async def _tell_gap(self, before: int, position: int) -> None:
        """Raises TakenOutError where what was read last is gone by now, too, or else LogGap."""
        if await record_at(self._source, self._name, before) is None:
            raise TakenOutError
        raise LogGap(f"experiment {self._name}: position {position} follows {before} in the log")

    async def _rows(self, upto: int) -> None:
        copied = 0
        async for page in row_pages(self._source, self._name):
            rows = [_named(row) for row in page if row.number <= upto]
            for part in _parts(rows, _size):
                await self._target.put(self._name, Part(rows=part))
            copied += len(rows)
            self._progress.tell(f"{self._name}: decisions {copied:,}")
            if len(rows) < len(page):
                break

    async def _marks(self, upto: int) -> list[KeptMark]:
        """All but those of later positions, and but the activations: these, for they have none."""
        activations, cursor, copied = list[KeptMark](), START, 0
        while True:
            page, cursor = await self._source.list_marks(self._name, cursor, PAGE)
            marks = [mark for mark in page if mark.position <= upto]
            activations += [mark for mark in marks if _is_activation(mark)]
            marks = [mark for mark in marks if not _is_activation(mark)]
            await self._load_marks(marks)
            copied += len(marks)
            self._progress.tell(f"{self._name}: marks {copied:,}")
            if not cursor:
                return activations

    async def _load_marks(self, marks: Sequence[KeptMark]) -> None:
        for part in _parts(marks, lambda mark: len(mark.identity) + len(mark.value)):
            await self._target.put(self._name, Part(marks=part))

    async def _activations(
        self, instant: Instant, activations: Sequence[KeptMark]
    ) -> dict[str, float | None]:
        """Marks of activations, of decisions that are in the copy, and which of these were
        activated after the instant: they are due, or their default reward would be forgotten."""
        late, marks = dict[str, float | None](), list[KeptMark]()
        for mark in activations:
            decision = mark.identity[:ID_CHARACTERS]
            payload = await self._target.decision(self._name, decision)
            if payload is None and await self._source.decision(self._name, decision) is not None:
                continue
            marks.append(mark)
            if payload is not None and decision not in instant.due:
                late |= await self._due_late(instant, decision, payload)
        await self._load_marks(marks)
        return late

    async def _due_late(
        self, instant: Instant, decision: str, payload: bytes
    ) -> dict[str, float | None]:
        """With a reward by the instant it was activated before, and what is due then tells all."""
        with suppress(StoreError):  # a damaged row gets no default reward
            row = decode_decision(payload)
            links = [link_mark(decision, 0, arm.arm) for arm in row.shown]
            found = await self._source.marks(self._name, links)
            if all(mark.position > instant.position for mark in found.values()):
                return {decision: row.reward_by}
        return {}

    async def _expect_nothing_taken_out(self, instant: Instant) -> None:
        if await self._source.removed(self._name) != instant.removed:
            raise TakenOutError
        async for page in pages(self._source, self._name, instant.position):
            if any(_is_erasure(record) for record in page):
                raise TakenOutError


def _named(row: KeptRow) -> KeptRow:
    """With an id, which an older Forage did not keep beside a row in Redis."""
    if row.id:
        return row
    name = f"row {row.number}"
    with suppress(StoreError):
        name = decode_decision(row.payload).id
    return KeptRow(row.number, name, row.payload)


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
