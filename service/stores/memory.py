"""The store of tests: plain dictionaries that end with the process. What it does is right."""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

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


@dataclass(slots=True)
class _Experiment:
    events: list[bytes] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    decisions: dict[str, bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, float] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def append(self, entry: Append) -> Outcome:
        known = {i: self.marks[i] for i in entry.marks if i in self.marks}
        if len(known) == len(entry.marks):
            self._settle(entry.settles)
        if known:
            return Known(known)
        self.events.append(entry.payload)
        position = len(self.events)
        self.marks |= {i: Mark(value, position) for i, value in entry.marks.items()}
        self._settle(entry.settles)
        return Appended(position)

    def _settle(self, decision: str | None) -> None:
        if decision is not None:
            self.settled.add(decision)
            self.waiting.pop(decision, None)

    def keep(self, row: DecisionRow) -> Outcome:
        if row.id in self.decisions:
            return Kept(self.decisions[row.id])
        self.decisions[row.id] = row.payload
        self.counts[row.policy] += 1
        if row.due is not None and row.id not in self.settled:
            self.waiting[row.id] = row.due
        return Kept()

    def activate(self, entry: Activation) -> Outcome:
        if entry.mark in self.marks:
            return Known({entry.mark: self.marks[entry.mark]})
        self.marks[entry.mark] = Mark("", 0)
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


class MemoryStore:
    shared = False
    durability = "Nothing outlives the process: this store is for tests."

    def __init__(self) -> None:
        self._experiments: defaultdict[str, _Experiment] = defaultdict(_Experiment)
        self._secret = secrets.token_bytes(32)
        self._moved = asyncio.Event()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def experiments(self) -> list[str]:
        return sorted(name for name, state in self._experiments.items() if state.events)

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        outcomes = [self._experiments[entry.experiment].take(entry) for entry in entries]
        self._moved.set()
        self._moved = asyncio.Event()
        return outcomes

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        events = self._experiments[experiment].events[after : after + limit]
        return [Record(after + n, payload) for n, payload in enumerate(events, start=1)]

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._past(positions):
                    await self._moved.wait()

    def _past(self, positions: Mapping[str, int]) -> bool:
        return any(len(self._experiments[name].events) > at for name, at in positions.items())

    async def marks(self, experiment: str, identities: Sequence[str]) -> dict[str, Mark]:
        marks = self._experiments[experiment].marks
        return {identity: marks[identity] for identity in identities if identity in marks}

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        return self._experiments[experiment].decisions.get(decision)

    async def decisions(self, experiment: str, after: int, limit: int) -> list[KeptRow]:
        rows = islice(self._experiments[experiment].decisions.items(), after, after + limit)
        return [KeptRow(number, *row) for number, row in enumerate(rows, after + 1)]

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return self._experiments[experiment].due(now)[:limit]

    async def decision_counts(self, experiment: str) -> dict[str, int]:
        return dict(self._experiments[experiment].counts)

    async def save_snapshot(self, experiment: str, snapshot: Snapshot) -> None:
        kept = self._experiments[experiment].snapshots
        kept[snapshot.position] = snapshot
        for position in sorted(kept)[:-2]:
            del kept[position]

    async def snapshots(self, experiment: str) -> list[Snapshot]:
        kept = self._experiments[experiment].snapshots
        return [kept[position] for position in sorted(kept, reverse=True)]

    async def put_blob(self, experiment: str, key: str, payload: bytes) -> None:
        self._experiments[experiment].blobs.setdefault(key, payload)

    async def blob(self, experiment: str, key: str) -> bytes | None:
        return self._experiments[experiment].blobs.get(key)

    async def secret(self) -> bytes:
        return self._secret
