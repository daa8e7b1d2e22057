"""Writer: the one writer of the log. It commits all queued entries together, folds what the log
took, then answers. Where the log is gone or slow, decisions wait in memory.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from service.errors import FoldFailed, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.buffer import Buffer
from service.log.commit_gate import APART_SECONDS, ENOUGH, SOME, CommitGate
from service.log.follower import Follower, Live
from service.log.replay import PAGE, Pace
from service.log.stores import Store
from service.log.stores.base import (
    Activation,
    Append,
    Appended,
    DecisionRow,
    Entry,
    Kept,
    Known,
    Outcome,
)
from service.log.waiting import Held, Waiting, told_of
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import AnyEvent, Skipped
from service.state.fold import State

__all__ = ["Held", "Writer"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.25

Written = tuple[Waiting, Outcome]
"""An entry and what the log says of it."""


class Writer:
    """Append and fold. After `append` returns, the event is durable and in the state.

    degraded   the log cannot be written or folded at present
    """

    def __init__(
        self,
        store: Store,
        follower: Follower,
        background: Background,
        gate: CommitGate,
        settings: Settings,
        telemetry: Telemetry,
    ) -> None:
        self._store, self._follower = store, follower
        self._background, self._gate = background, gate
        self._patience_seconds, self._telemetry = settings.select_log_seconds, telemetry
        self._pending: list[Waiting] = []
        self._wake = asyncio.Event()
        self._buffer = Buffer(settings.buffer_decisions)
        self._slow = False  # a decision waited in vain for the commit that is under way
        self._patient: deque[Waiting] = deque()  # rows that are waited for, the oldest first
        self._alarm: asyncio.TimerHandle | None = None
        self._behind: dict[str, deque[tuple[list[Written], float]]] = {}
        self._folding: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        self._closing = False
        self.degraded = False

    @property
    def queued(self) -> int:
        """Entries that wait for the next commit."""
        return len(self._pending)

    @property
    def buffered(self) -> int:
        """Decisions that were answered and wait in memory for the log."""
        return len(self._buffer)

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Take no more entries, and commit those that are queued."""
        self._closing = True
        if self._writing:
            self._wake.set()
            self._gate.hurry()
            await self._writing

    async def flush(self) -> None:
        """Commit the decisions that wait in memory. Raises StoreError."""
        try:
            if self._buffer:
                rows = self._buffer.oldest(len(self._buffer))
                await self._store.commit(rows)
                for row in rows:
                    self._buffer.drop(row)
        finally:
            if self._buffer:
                logger.error("%d answered decisions are lost to the log", len(self._buffer))

    def forget_unlogged(self, experiment: str, words: Collection[str]) -> list[bytes]:
        """Drop the decisions in memory that hold one of these words; their payloads."""
        gone = []
        for row in self._buffer.oldest(len(self._buffer)):
            if row.experiment == experiment and any(one.encode() in row.payload for one in words):
                self._buffer.drop(row)
                gone.append(row.payload)
        return gone

    # -- append --------------------------------------------------------------------------------

    async def append(self, entry: Append, event: AnyEvent) -> Appended | Known:
        """Make an event durable and fold it. Raises StoreUnavailable: nothing is acknowledged. A
        quarantined experiment takes what lifts the quarantine, and nothing else."""
        if not isinstance(event, Skipped):
            self._follower.state(entry.experiment)
        outcome = await self._written(entry, event)
        assert isinstance(outcome, Appended | Known)
        return outcome

    async def activate(self, entry: Activation) -> bool:
        """Whether it was the first. Raises StoreUnavailable: nothing is acknowledged."""
        return isinstance(await self._written(entry, None), Kept)

    async def append_all(self, entries: Sequence[tuple[Append, AnyEvent]]) -> None:
        """`append` of each, in one commit. Raises StoreUnavailable."""
        self._expect_log()
        loop = asyncio.get_running_loop()
        waiting = [self._submit(*entry, loop.create_future()) for entry in entries]
        outcomes = await asyncio.gather(*(each.done for each in waiting), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _written(self, entry: Entry, event: AnyEvent | None) -> Outcome:
        self._expect_log()
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._submit(entry, event, done)
        return await done

    def _expect_log(self) -> None:
        if self.degraded:
            raise StoreUnavailable("the log cannot be written at present")

    async def keep(self, row: DecisionRow, *, required: bool) -> Held:
        """Log a decision, or let it wait in memory for a log that is gone or slow. What another one
        had under its id before stays.

        Raises StoreUnavailable where the answer is worth nothing without its row.
        """
        done: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        if required:
            self._submit(row, None, done)
        else:
            self._keep(row, done)
        return await done

    def _keep(self, row: DecisionRow, done: asyncio.Future[Any]) -> None:
        if self.degraded or (self._slow and self._buffer.full) or self._closing:
            done.set_result(self._unlogged(row, comes=False))
            return
        waiting = self._submit(row, None, done)
        waiting.row = row
        if self._slow:
            done.set_result(self._unlogged(row, comes=True))
        else:
            self._watch_over(waiting)

    def _unlogged(self, row: DecisionRow, *, comes: bool) -> Held:
        """Answer without the log. comes: its row may be there yet."""
        self._telemetry.unlogged.inc()
        standing = self._buffer.put(row)
        if standing is None and not comes:
            self._telemetry.overflowed.inc()
        return Held((standing or row).payload, logged=False)

    def _watch_over(self, waiting: Waiting) -> None:
        """One timer for all: each row is waited for as long, so the oldest comes first."""
        loop = asyncio.get_running_loop()
        waiting.deadline = loop.time() + self._patience_seconds
        self._patient.append(waiting)
        if self._alarm is None:
            self._alarm = loop.call_at(waiting.deadline, self._lose_patience)

    def _lose_patience(self) -> None:
        """Answer those that have waited long enough without the log."""
        loop, self._alarm = asyncio.get_running_loop(), None
        self._drop_answered()
        while self._patient and self._patient[0].deadline <= loop.time():
            waiting = self._patient.popleft()
            if waiting.row is not None and not waiting.done.done():
                self._slow = True
                waiting.done.set_result(self._unlogged(waiting.row, comes=True))
        if self._patient:
            self._alarm = loop.call_at(self._patient[0].deadline, self._lose_patience)

    def _drop_answered(self) -> None:
        while self._patient and self._patient[0].done.done():
            self._patient.popleft()

    def _came(self, waiting: Waiting, outcome: Outcome | Exception) -> None:
        """Tell who waits. Nobody may: the request went away, or its answer did not wait."""
        if waiting.done.done():
            if waiting.row is None:
                return
            if not isinstance(outcome, Exception):
                self._buffer.drop(waiting.row)
            elif self._buffer.put(waiting.row) is None:
                self._telemetry.overflowed.inc()
        elif isinstance(outcome, Kept) and isinstance(waiting.entry, DecisionRow):
            payload = waiting.entry.payload if outcome.earlier is None else outcome.earlier
            waiting.done.set_result(Held(payload, logged=True))
        elif not isinstance(outcome, Exception):
            waiting.done.set_result(outcome)
        elif waiting.row is not None:
            waiting.done.set_result(self._unlogged(waiting.row, comes=False))
        else:
            known = isinstance(outcome, StoreUnavailable)
            waiting.done.set_exception(outcome if known else StoreUnavailable(str(outcome)))

    async def held(self, experiment: str, decision: str) -> Held | None:
        """What stands under a decision's id. Raises StoreUnavailable."""
        waiting = self._buffer.find(experiment, decision)
        if waiting is not None:
            return Held(waiting.payload, logged=False)
        payload = await self._store.decision(experiment, decision)
        return None if payload is None else Held(payload, logged=True)

    async def held_soon(self, experiment: str, decision: str) -> Held | None:
        """The same. Where the log is gone or slow it is not asked: then as far as this process has
        it."""
        if self.degraded or self._slow:
            waiting = self._buffer.find(experiment, decision)
            return None if waiting is None else Held(waiting.payload, logged=False)
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._patience_seconds):
                return await self.held(experiment, decision)
        return None

    def _submit(self, entry: Entry, event: AnyEvent | None, done: asyncio.Future[Any]) -> Waiting:
        waiting = Waiting(entry, event, done)
        if self._closing:
            waiting.done.set_exception(StoreUnavailable("the service is shutting down"))
        else:
            self._pending.append(waiting)
            self._wake.set()
            if len(self._pending) >= ENOUGH:
                self._gate.hurry()
        return waiting

    async def _write(self) -> None:
        while self._pending or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            if batch:
                began = asyncio.get_running_loop().time()
                self._gate.begin()
                await self._commit(batch, began)
                if len(batch) >= SOME and len(self._pending) < ENOUGH and not self._closing:
                    await self._gate.pause(began + APART_SECONDS)
                self._gate.end()
        while self._folding:
            await asyncio.wait(self._folding)

    async def _commit(self, batch: list[Waiting], began: float) -> None:
        start = perf_counter()
        try:
            try:
                outcomes = await self._store.commit([waiting.entry for waiting in batch])
            finally:
                self._slow = False
            self._telemetry.append_seconds.observe(perf_counter() - start)
            written = list(zip(batch, outcomes, strict=True))
        except Exception as fault:  # whatever it is: no request may wait for ever
            self.degrade(fault)
            for waiting in batch:
                self._came(waiting, fault)
        else:
            await self._fold_written(written, began)
        self._drop_answered()

    async def _fold_written(self, written: Sequence[Written], began: float) -> None:
        """Fold what the log took, one experiment after another, and answer who waits. Where a long
        decision holds an experiment's lock, a task of its own does so, and the others go on."""
        events = dict[str, list[Written]]()
        lives = self._follower.live
        for waiting, outcome in written:
            name = waiting.entry.experiment
            if isinstance(outcome, Appended) and name not in lives:
                lives[name] = Live(State(name), recovered=True, caught_up_at=began)
            if waiting.event is None or name not in lives:
                self._came(waiting, outcome)
            else:
                events.setdefault(name, []).append((waiting, outcome))
        for name, own in events.items():
            live = lives[name]
            if name in self._behind:
                self._behind[name].append((own, began))
            elif live.lock.locked():
                self._behind[name] = deque([(own, began)])
                task = asyncio.create_task(self._fold_behind(live, self._behind[name]))
                self._folding.add(task)
                task.add_done_callback(self._folding.discard)
            else:
                await self._fold_and_tell(live, own, began)

    async def _fold_behind(self, live: Live, behind: deque[tuple[list[Written], float]]) -> None:
        """What commits brought while the experiment's lock was held, in their order."""
        while behind:
            await self._fold_and_tell(live, *behind[0])
            behind.popleft()
        del self._behind[live.state.name]

    async def _fold_and_tell(self, live: Live, own: list[Written], began: float) -> None:
        """Of one experiment and one commit."""
        told: Sequence[tuple[Waiting, Outcome | Exception]] = own
        try:
            async with live.lock:
                await self._fold_own(live, own, began)
            if live.quarantine is not None:
                told = [(waiting, told_of(live.quarantine, waiting, one)) for waiting, one in own]
        except Exception as fault:
            self.degrade(fault)
            told = [(waiting, fault) for waiting, _ in own]
        for waiting, outcome in told:
            self._came(waiting, outcome)

    async def _fold_own(self, live: Live, own: Sequence[Written], began: float) -> None:
        """Fold, in slices, what the log took of one experiment; the caller holds the lock.
        Positions that others filled in between are read first."""
        pace = Pace()
        for waiting, outcome in own:
            if live.quarantine is not None:
                return
            if waiting.event is None or not isinstance(outcome, Appended):
                continue
            if outcome.position == live.state.position + 1:
                try:
                    await self._follower.fold(live, outcome.position, waiting.event)
                except FoldFailed as fault:
                    self._follower.stop(live, fault)
                live.caught_up_at = max(live.caught_up_at, began)
            elif outcome.position > live.state.position:
                await self._follower.read_up(live)
            await pace.keep()

    def degrade(self, fault: Exception) -> None:
        if not self.degraded:
            bug = None if isinstance(fault, StoreError) else fault
            logger.error("the log cannot be written or folded: %s", fault, exc_info=bug)
            self.degraded = True
            self._telemetry.degraded.set(1)
            self._background.spawn(self._restore(str(fault)))

    async def _restore(self, told: str) -> None:
        """Try the log until it takes the buffered decisions, then serve as before.

        told   the fault that was said last
        """
        while self.degraded:
            await asyncio.sleep(RETRY_SECONDS)
            rows = self._buffer.oldest(PAGE)
            try:
                await self._store.commit(rows)  # even none, to see whether the log can be written
                await self._follower.read_up_all()  # what was appended though its answer was lost
            except Exception as fault:
                if str(fault) != told:
                    told = str(fault)
                    logger.error("the log is still gone: %s", fault)
                continue
            for row in rows:
                self._buffer.drop(row)
            if not self._buffer:
                self.degraded = False
                self._telemetry.degraded.set(0)
                logger.warning("the log can be written again")
