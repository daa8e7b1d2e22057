"""A disk that outlives processes, and the line of one process to it, which may fail as it can."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Any, Literal

from service.errors import StoreUnavailable
from service.log.stores.base import CommitResult, Entry, Erasure, Snapshot, Trim
from service.log.stores.memory import MemoryStore
from service.settle.marks import ERASED
from service.state.decisions import decode_decision
from service.state.events import AnyEvent, decode_event
from tests.simulation.clock import MOST_SKEW_S, skew_of_owner

Fault = Literal["refuse", "lose", "part", "late"]
"""Of a commit. refuse: nothing is kept; lose: all is kept, and the answer is lost; part: the same,
of some entries; late: the answer is an error now, and the entries are kept later (a command that
waits in a server's buffer: of shared stores alone)."""

LATENCIES = (0.0, 0.001, 0.004, 0.02)


class Disk(MemoryStore):
    """What is kept. An experiment is looked at from outside the service through `events` and
    `rows`: with what was trimmed, and events as they were before they were erased.

    now        by the clock that was ahead most of those that may write
    misdeeds   what was taken out and should not have been
    """

    def __init__(self, *, shared: bool, now: Callable[[], float]) -> None:
        super().__init__()
        self.shared = shared
        self._now = now
        self.late: set[asyncio.Task[None]] = set()
        self.damaged: set[bytes] = set()
        self._past_events: dict[int, bytes] = {}
        self._past_rows: dict[str, bytes] = {}
        self._past_blobs: dict[str, bytes] = {}
        self.misdeeds: list[str] = []

    async def take(self, entry: Entry) -> CommitResult:
        """One entry, whole or not at all."""
        [outcome] = await self.commit([entry])
        return outcome

    def events(self, name: str, after: int = 0) -> list[AnyEvent]:
        every = self._experiments[name].events | self._past_events
        return [decode_event(every[at]) for at in sorted(every) if at > after]

    def present_events(self, name: str) -> list[AnyEvent]:
        return [decode_event(payload) for payload in self._experiments[name].events.values()]

    def length(self, name: str) -> int:
        return self._experiments[name].position

    @property
    def trimmed(self) -> set[str]:
        """Decisions whose rows were: nothing tells any more whose they were."""
        return set(self._past_rows)

    def closing(self, name: str) -> set[str]:
        """Decisions that somebody began to erase: nothing is settled of them any more."""
        marks = self._experiments[name].marks.items()
        return {identity.partition("#")[0] for identity, mark in marks if mark.value == ERASED}

    def rows(self, name: str) -> Mapping[str, bytes]:
        return self._experiments[name].decisions | self._past_rows

    def kept_snapshots(self, name: str) -> list[Snapshot]:
        kept = self._experiments[name]
        return [*kept.snapshots.values(), *([kept.origin] if kept.origin else [])]

    async def trim(self, experiment: str, cut: Trim, limit: int) -> int:
        kept = self._experiments[experiment]
        events, rows = dict(kept.events), dict(kept.decisions)
        count = await super().trim(experiment, cut, limit)
        gone = {at: events[at] for at in events.keys() - kept.events.keys()}
        self._past_events = gone | self._past_events  # as they were before an erasure
        now = max(self._now(), *(event.at for event in self.events(experiment)))
        for row in rows.keys() - kept.decisions.keys():
            self._past_rows[row] = rows[row]
            if decode_decision(rows[row]).accept_until >= now:
                self.misdeeds.append(f"decision {row} was trimmed while it was open")
        return count

    async def erase(self, experiment: str, erasure: Erasure) -> None:
        kept = self._experiments[experiment]
        self._past_blobs |= {key: kept.blobs[key] for key in erasure.blobs if key in kept.blobs}
        before = {at: kept.events[at] for at in erasure.events if at in kept.events}
        await super().erase(experiment, erasure)
        self._past_events = before | self._past_events
        for row in erasure.decisions:
            self._past_rows.pop(row, None)

    def kept_blob(self, name: str, key: str) -> bytes:
        return (self._experiments[name].blobs | self._past_blobs)[key]

    def corrupt(self, rng: Random) -> None:
        """Change a bit of a newest snapshot, or cut it short."""
        for snapshots in [experiment.snapshots for experiment in self._experiments.values()]:
            if not snapshots:
                continue
            position = max(snapshots)
            payload = bytearray(snapshots[position].payload)
            where = rng.randrange(len(payload))
            if rng.random() < 0.5:
                payload[where] ^= 1 << rng.randrange(8)
            else:
                del payload[where:]
            snapshots[position] = Snapshot(position, bytes(payload))
            self.damaged.add(bytes(payload))


class Line:
    """The store as one process sees it: every call takes a while, each way.

    faults   of the next commits, in order
    down     until then (loop time) every call fails; slow: until then no call gets through
    """

    def __init__(self, disk: Disk, rng: Random) -> None:
        self.shared, self.durability = disk.shared, disk.durability
        self.clock_skew_seconds = disk.clock_skew_seconds
        self.faults: deque[Fault] = deque()
        self.down = self.slow = 0.0
        self._disk, self._rng = disk, rng
        self._cut = False

    async def open(self) -> None:
        await self._trip()

    async def close(self) -> None: ...

    def cut(self) -> None:
        """The process is dead: nothing of it reaches the disk any more."""
        self._cut = True

    async def _trip(self) -> None:
        await asyncio.sleep(self._rng.choice(LATENCIES))
        now = asyncio.get_running_loop().time()
        if self._cut or now < self.down:
            raise StoreUnavailable("the store does not answer")
        if now < self.slow:
            await asyncio.sleep(self.slow - now)

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        """Every call that changes no log: there and back."""
        call = getattr(self._disk, verb)

        async def through(*arguments: Any, **options: Any) -> Any:
            await self._trip()
            answer = await call(*arguments, **options)
            await self._trip()
            return answer

        return through

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        await self._trip()
        await self._disk.wait(positions, seconds)

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        """Entry by entry: those of other processes may come between."""
        await self._trip()
        if self.shared and abs(skew_of_owner()) > MOST_SKEW_S:
            raise StoreUnavailable("the clock of this process is wrong")
        fault = self.faults.popleft() if self.faults else None
        if fault == "late" and self.shared:
            self._keep_later(entries)
        if fault in ("refuse", "late"):
            raise StoreUnavailable("nothing was kept, as far as one can see")
        outcomes = []
        for entry in entries:
            if fault != "part" or self._rng.random() < 0.5:
                outcomes.append(await self._disk.take(entry))
                await asyncio.sleep(0)
        await self._trip()
        if fault:
            raise StoreUnavailable("the answer was lost")
        return outcomes

    def _keep_later(self, entries: Sequence[Entry]) -> None:
        async def keep() -> None:
            await asyncio.sleep(self._rng.choice((0.1, 1.0, 5.0)))
            for entry in entries:
                await self._disk.take(entry)

        task = asyncio.get_running_loop().create_task(keep(), context=Context())
        self._disk.late.add(task)
        task.add_done_callback(self._disk.late.discard)
