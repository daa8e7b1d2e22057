"""The reference implementation of a store: plain dictionaries that end with the process."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from service.errors import StoreError
from service.log.stores.base import (
    Append,
    Appended,
    Blob,
    CommitResult,
    DecisionRow,
    Entry,
    Erasure,
    Item,
    KeptMark,
    KeptRow,
    LogEnd,
    LogSummary,
    Mark,
    MarkConflict,
    Marks,
    Published,
    ReaderPosition,
    ReaderState,
    Record,
    Removal,
    Removed,
    RowStored,
    Secret,
    Snapshot,
    StoreSize,
    Trim,
    digest,
    expect_origin,
)
from service.log.stores.store import SECRET, START, Cursor, Keyed, KeyedValues, Ordered, Page, Store


@dataclass(slots=True)
class _Experiment:
    """Log of one experiment. events: by position, those that are kept."""

    position: int = 0
    digest: str = ""
    events: dict[int, bytes] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    keep_until: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    decisions: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, float] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    origin: Snapshot | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    readers: dict[str, ReaderPosition] = field(default_factory=dict)
    stamp: str = ""
    published: dict[str, bytes] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)

    def append(self, entry: Append) -> CommitResult:
        known = {i: self.marks[i] for i in entry.marks if i in self.marks}
        if len(known) == len(entry.marks):
            self._settle(entry.settles)
        if {identity: mark.value for identity, mark in known.items()} != entry.replaces:
            return MarkConflict(known)
        self.position += 1
        self.events[self.position] = entry.payload
        before, self.digest = self.digest, digest(entry.payload)
        self._mark(entry.marks, self.position, entry.keep_until)
        self._settle(entry.settles)
        if entry.opens is not None:
            self._wait(*entry.opens)
        return Appended(self.position, before)

    def _mark(self, marks: Mapping[str, str], position: int, keep_until: float | None) -> None:
        self.marks |= {i: Mark(value, position) for i, value in marks.items()}
        if keep_until is not None:
            self.keep_until |= dict.fromkeys(marks, keep_until)

    def _settle(self, decisions: Iterable[str]) -> None:
        for decision in decisions:
            self.settled.add(decision)
            self.waiting.pop(decision, None)

    def _wait(self, decision: str, due: float) -> None:
        if decision not in self.settled:
            self.waiting[decision] = due

    def keep(self, row: DecisionRow) -> CommitResult:
        if row.id in self.decisions:
            return RowStored(0, self.decisions[row.id])
        self.rows += 1
        self.decisions[row.id], self.numbers[row.id] = row.payload, self.rows
        self.counts[row.series] += 1
        if row.due is not None:
            self._wait(row.id, row.due)
        return RowStored(self.rows)

    def take(self, entry: Entry) -> CommitResult:
        return self.append(entry) if isinstance(entry, Append) else self.keep(entry)

    def due(self, now: float) -> list[bytes]:
        waiting = sorted((due, decision) for decision, due in self.waiting.items() if due <= now)
        return [self.decisions[decision] for _, decision in waiting if decision in self.decisions]

    def save(self, snapshot: Snapshot) -> None:
        if self.origin is not None and snapshot.position < self.origin.position:
            return
        if snapshot.origin:
            self.origin = snapshot
        self.snapshots[snapshot.position] = snapshot
        for position in sorted(self.snapshots)[:-2]:
            del self.snapshots[position]

    def trim(self, cut: Trim, limit: int) -> int:
        events = [at for at in islice(self.events, limit) if at <= cut.position]
        old = [i for i, until in self.keep_until.items() if until < cut.marks_before][:limit]
        rows = list(
            takewhile(
                lambda row: (
                    self.numbers[row] <= cut.row and not (cut.settles and row in self.waiting)
                ),
                islice(self.decisions, limit),
            )
        )
        for position in events:
            del self.events[position]
        self.forget(old)
        self.drop(rows)
        for row in rows:
            self.waiting.pop(row, None)
        self.removed = replace(self.removed, trimmed=self.removed.trimmed + len(rows))
        return len(events) + len(old) + len(rows)

    def forget(self, identities: Iterable[str]) -> None:
        for identity in identities:
            self.marks.pop(identity, None)
            self.keep_until.pop(identity, None)

    def drop(self, rows: Iterable[str]) -> None:
        for row in rows:
            del self.decisions[row], self.numbers[row]
            self.settled.discard(row)

    def erase(self, erasure: Erasure) -> None:
        self.events |= {at: to for at, to in erasure.events.items() if at in self.events}
        rows = [row for row in erasure.decisions if row in self.decisions]
        self.drop(rows)
        self.removed = replace(self.removed, erased=self.removed.erased + len(rows))
        for row in erasure.decisions:
            self.waiting.pop(row, None)
            self.settled.discard(row)
        self.forget([i for i in self.marks if i.startswith(tuple(erasure.forget))])
        for position in [at for at in self.snapshots if at < erasure.origin]:
            del self.snapshots[position]
        for key in erasure.blobs:
            self.blobs.pop(key, None)

    # -- tables --------------------------------------------------------------------------------

    def page(self, table: Ordered, after: Cursor, limit: int) -> Sequence[object]:
        """Return a page of a table; of marks all at once."""
        match table:
            case "events":
                first = max(int(after) + 1, next(iter(self.events), self.position + 1))
                last = min(self.position, first + limit - 1)
                return [Record(at, self.events[at]) for at in range(first, last + 1)]
            case "decisions":
                rows = [(name, at) for name, at in self.numbers.items() if at > int(after)]
                return [KeptRow(at, name, self.decisions[name]) for name, at in rows[:limit]]
            case "marks":
                until = self.keep_until.get
                return [KeptMark(i, m.value, m.position, until(i)) for i, m in self.marks.items()]
            case "snapshots":
                origin = [] if self.origin is None else [self.origin]
                kept = self.snapshots | {one.position: one for one in origin}
                return [kept[position] for position in sorted(kept, reverse=True)]
            case "blobs":
                return sorted(self.blobs)

    def describe(self) -> LogSummary:
        due = {**dict.fromkeys(self.settled - self.decisions.keys()), **self.waiting}
        counts, readers = dict(self.counts), dict(self.readers)
        return LogSummary(self.position, self.rows, due, counts, self.removed, readers, self.digest)

    def put(self, item: Item) -> None:
        match item:
            case Snapshot():
                self.save(item)
            case Blob(key, payload):
                self.blobs.setdefault(key, payload)
            case ReaderState(name, taken):
                if taken is None:
                    self.readers.pop(name, None)
                else:
                    self.readers[name] = taken
            case Marks(marks):
                for mark in marks:
                    self._mark({mark.identity: mark.value}, mark.position, mark.keep_until)
            case LogEnd(position, of_last):
                self.position, self.digest = position, of_last
            case Published(stamp, parts):
                self.published |= parts
                self.stamp = stamp
            case Secret():
                raise AssertionError("a secret belongs to no experiment")


class MemoryStore(Store):
    shared = False
    durability = "Nothing outlives the process: this store is for tests."

    def __init__(self) -> None:
        self._experiments: defaultdict[str, _Experiment] = defaultdict(_Experiment)
        self._secrets: dict[str, bytes] = {}
        self._processes: dict[str, tuple[float, str]] = {}
        self._moved = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def experiments(self) -> list[str]:
        return sorted(name for name, state in self._experiments.items() if state.position)

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        outcomes = [self._experiments[entry.experiment].take(entry) for entry in entries]
        self._moved.set()
        self._moved = asyncio.Event()
        return outcomes

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._past(positions):
                    await self._moved.wait()

    def _past(self, positions: Mapping[str, int]) -> bool:
        return any(self._experiments[name].position > at for name, at in positions.items())

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return self._experiments[experiment].due(now)[:limit]

    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        return [*self._experiments[experiment].page(table, after, limit)], START

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        kept = self._experiments[experiment]
        tables: dict[Keyed, Mapping[str, object]] = {
            "marks": kept.marks,
            "decisions": kept.decisions,
            "blobs": kept.blobs,
            "published": kept.published,
            "secret": self._secrets,
        }
        known = tables[table]
        return {key: known[key] for key in keys if key in known}

    async def stamps(self) -> dict[str, str]:
        return {name: kept.stamp for name, kept in self._experiments.items() if kept.stamp}

    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        return self._experiments[experiment].describe()

    async def measure(self) -> StoreSize:
        logs = {
            name: sum(map(len, [*kept.events.values(), *kept.decisions.values()]))
            for name, kept in self._experiments.items()
        }
        return StoreSize(sum(logs.values()), None, logs)

    async def put(self, experiment: str, item: Item) -> None:
        if not isinstance(item, Secret):
            self._experiments[experiment].put(item)
        elif self._secrets.setdefault(SECRET, item.content) is not item.content:
            raise StoreError("the store has a secret of its own already")

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        kept = self._experiments[experiment]
        origin = kept.origin.position if kept.origin else 0
        if isinstance(what, Trim):
            expect_origin(experiment, origin, what.position)
            return kept.trim(what, limit)
        if isinstance(what, Erasure):
            expect_origin(experiment, origin, what.origin)
            kept.erase(what)
        return 0

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        now = asyncio.get_running_loop().time()
        self._processes[process] = now + seconds, doing
        self._processes = {name: said for name, said in self._processes.items() if said[0] > now}
        return {name: doing for name, (_, doing) in self._processes.items()}
