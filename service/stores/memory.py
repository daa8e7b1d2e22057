"""The store of tests: plain dictionaries that end with the process. What it does is right."""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from service.errors import StoreError
from service.stores import memory_copy
from service.stores.base import (
    Activation,
    Append,
    Appended,
    DecisionRow,
    Entry,
    Kept,
    KeptRow,
    Known,
    Mark,
    Outcome,
    Record,
    Snapshot,
)
from service.stores.keeping import Cut, Erasure, Instant, KeptMark, Part, Removed, Taken


@dataclass(slots=True)
class _Experiment:
    """events: by position, those that are kept."""

    position: int = 0
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
    readers: dict[str, Taken] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)

    def append(self, entry: Append) -> Outcome:
        known = {i: self.marks[i] for i in entry.marks if i in self.marks}
        if len(known) == len(entry.marks):
            self._settle(entry.settles)
        if known:
            return Known(known)
        self.position += 1
        self.events[self.position] = entry.payload
        self._mark(entry.marks, self.position, entry.keep_until)
        self._settle(entry.settles)
        return Appended(self.position)

    def _mark(self, marks: Mapping[str, str], position: int, keep_until: float | None) -> None:
        self.marks |= {i: Mark(value, position) for i, value in marks.items()}
        if keep_until is not None:
            self.keep_until |= dict.fromkeys(marks, keep_until)

    def _settle(self, decision: str | None) -> None:
        if decision is not None:
            self.settled.add(decision)
            self.waiting.pop(decision, None)

    def keep(self, row: DecisionRow) -> Outcome:
        if row.id in self.decisions:
            return Kept(self.decisions[row.id])
        self.rows += 1
        self.decisions[row.id], self.numbers[row.id] = row.payload, self.rows
        self.counts[row.policy] += 1
        if row.due is not None and row.id not in self.settled:
            self.waiting[row.id] = row.due
        return Kept()

    def activate(self, entry: Activation) -> Outcome:
        if entry.mark in self.marks:
            return Known({entry.mark: self.marks[entry.mark]})
        self._mark({entry.mark: ""}, 0, entry.keep_until)
        if entry.due is not None and entry.decision not in self.settled:
            self.waiting[entry.decision] = entry.due
        return Kept()

    def take(self, entry: Entry) -> Outcome:
        if isinstance(entry, Append):
            return self.append(entry)
        return self.keep(entry) if isinstance(entry, DecisionRow) else self.activate(entry)

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

    def check_origin(self, position: int) -> None:
        origin = self.origin.position if self.origin else 0
        if position > origin:
            raise StoreError(
                f"the origin of replay is at position {origin}: nothing up to position {position} "
                "can be taken out"
            )

    def trim(self, cut: Cut, limit: int) -> int:
        self.check_origin(cut.position)
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
        self.check_origin(erasure.origin)
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


class MemoryStore:
    shared = False
    durability = "Nothing outlives the process: this store is for tests."

    def __init__(self) -> None:
        self._experiments: defaultdict[str, _Experiment] = defaultdict(_Experiment)
        self._secret: bytes | None = None
        self._processes: dict[str, tuple[float, str]] = {}
        self._moved = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def experiments(self) -> list[str]:
        return sorted(name for name, state in self._experiments.items() if state.position)

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        outcomes = [self._experiments[entry.experiment].take(entry) for entry in entries]
        self._moved.set()
        self._moved = asyncio.Event()
        return outcomes

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        events = self._experiments[experiment].events
        last = self._experiments[experiment].position
        first = max(after + 1, next(iter(events), last + 1))
        positions = range(first, min(last, first + limit - 1) + 1)
        return [Record(position, events[position]) for position in positions]

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._past(positions):
                    await self._moved.wait()

    def _past(self, positions: Mapping[str, int]) -> bool:
        return any(self._experiments[name].position > at for name, at in positions.items())

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        marks = self._experiments[experiment].marks
        return {identity: marks[identity] for identity in identities if identity in marks}

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        return self._experiments[experiment].decisions.get(decision)

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        state = self._experiments[experiment]
        rows = (
            KeptRow(number, name, state.decisions[name])
            for name, number in state.numbers.items()
            if number > after
        )
        return list(islice(rows, limit))

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return self._experiments[experiment].due(now)[:limit]

    async def decision_counts(self, experiment: str) -> dict[str, int]:
        return dict(self._experiments[experiment].counts)

    async def save_snapshot(self, experiment: str, snapshot: Snapshot) -> None:
        self._experiments[experiment].save(snapshot)

    async def snapshots(self, experiment: str) -> list[Snapshot]:
        state = self._experiments[experiment]
        kept = dict(state.snapshots)
        if state.origin:
            kept[state.origin.position] = state.origin
        return [kept[position] for position in sorted(kept, reverse=True)]

    async def put_blob(self, experiment: str, key: str, payload: bytes) -> None:
        self._experiments[experiment].blobs.setdefault(key, payload)

    async def blob(self, experiment: str, key: str) -> bytes | None:
        return self._experiments[experiment].blobs.get(key)

    async def secret(self) -> bytes:
        if self._secret is None:
            self._secret = secrets.token_bytes(32)
        return self._secret

    # -- housekeeping --------------------------------------------------------------------------

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        now = asyncio.get_running_loop().time()
        self._processes[process] = now + seconds, doing
        self._processes = {name: said for name, said in self._processes.items() if said[0] > now}
        return {name: doing for name, (_, doing) in self._processes.items()}

    async def take_note(self, experiment: str, reader: str, taken: Taken | None) -> None:
        known = self._experiments[experiment].readers
        if taken is None:
            known.pop(reader, None)
        else:
            known[reader] = taken

    async def readers(self, experiment: str) -> dict[str, Taken]:
        return dict(self._experiments[experiment].readers)

    async def trim(self, experiment: str, cut: Cut, limit: int) -> int:
        return self._experiments[experiment].trim(cut, limit)

    async def removed(self, experiment: str) -> Removed:
        return self._experiments[experiment].removed

    async def overwrite_marks(
        self, experiment: str, marks: Mapping[str, str], keep_until: float
    ) -> None:
        self._experiments[experiment]._mark(marks, 0, keep_until)

    async def erase(self, erasure: Erasure) -> None:
        self._experiments[erasure.experiment].erase(erasure)

    async def forget_blobs(self, experiment: str, keys: Sequence[str]) -> None:
        for key in keys:
            self._experiments[experiment].blobs.pop(key, None)

    async def scrub(self) -> None: ...

    # -- copies --------------------------------------------------------------------------------

    async def instant(self, experiment: str) -> Instant:
        return memory_copy.instant(self._experiments[experiment])

    async def list_marks(
        self, experiment: str, cursor: str, limit: int
    ) -> tuple[list[KeptMark], str]:
        return memory_copy.list_marks(self._experiments[experiment], cursor, limit)

    async def blob_keys(self, experiment: str) -> list[str]:
        return sorted(self._experiments[experiment].blobs)

    async def load(self, experiment: str, part: Part) -> None:
        memory_copy.load(self._experiments[experiment], part)

    async def adopt_secret(self, secret: bytes) -> None:
        if self._secret is not None:
            raise StoreError("the store has a secret of its own already")
        self._secret = secret
