"""The one writer of the log: it commits whatever waits, at once and together, folds what the log
took, then wakes all. Where the log is gone or slow, decisions wait in memory.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any

from service.errors import FoldFailed, StoreError, StoreUnavailable
from service.log.buffer import Buffer
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

SOME, ENOUGH, APART_SECONDS = 6, 32, 0.003
"""After a commit of at least some entries the next begins so long after it began, or once enough
entries wait: a commit costs as much as three decisions, whatever is in it."""

Written = tuple[Waiting, Outcome]
"""An entry and what the log says of it."""


class Writer(Follower):
    """Append and fold. After `append` returns, the event is durable and in the state.

    committing        a commit is under way, or the pause after it
    between_commits   is called when that has ended, before the next is begun
    all_wait          whether nobody is left who might ask: then a pause brings nothing together
    """

    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(store, telemetry)
        self._settings = settings
        self._pending: list[Waiting] = []
        self._wake, self._enough = asyncio.Event(), asyncio.Event()
        self._buffer = Buffer(settings.buffer_decisions)
        self._slow = False  # a decision waited in vain for the commit that is under way
        self._patient: deque[Waiting] = deque()  # rows that are waited for, the oldest first
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._behind: dict[str, deque[tuple[list[Written], float]]] = {}
        self._folding: set[asyncio.Task[None]] = set()
        self._closing = False
        self.degraded = False
        self.committing = False
        self.between_commits: Callable[[], None] = lambda: None
        self.all_wait: Callable[[], bool] = lambda: False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background until `close`; a failure is logged, not lost."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            logger.error("a background task failed", exc_info=fault)

    # -- append --------------------------------------------------------------------------------

    async def append(self, entry: Append, event: AnyEvent) -> Appended | Known:
        """Make an event durable and fold it. Raises StoreUnavailable: nothing is acknowledged. A
        quarantined experiment takes what lifts the quarantine, and nothing else."""
        if not isinstance(event, Skipped):
            self.state(entry.experiment)
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
        self.telemetry.unlogged.inc()
        standing = self._buffer.put(row)
        if standing is None and not comes:
            self.telemetry.overflowed.inc()
        return Held((standing or row).payload, logged=False)

    def _watch_over(self, waiting: Waiting) -> None:
        """One timer for all: each row is waited for as long, so the oldest comes first."""
        loop = asyncio.get_running_loop()
        waiting.deadline = loop.time() + self._settings.select_log_seconds
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
                self.telemetry.overflowed.inc()
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
        payload = await self.store.decision(experiment, decision)
        return None if payload is None else Held(payload, logged=True)

    async def held_soon(self, experiment: str, decision: str) -> Held | None:
        """The same. Where the log is gone or slow it is not asked: then as far as this process has
        it."""
        if self.degraded or self._slow:
            waiting = self._buffer.find(experiment, decision)
            return None if waiting is None else Held(waiting.payload, logged=False)
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._settings.select_log_seconds):
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
                self.hurry()
        return waiting

    async def _write(self) -> None:
        while self._pending or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            if batch:
                began = asyncio.get_running_loop().time()
                self.committing = True
                await self._commit(batch, began)
                if len(batch) >= SOME:
                    await self._pause(began + APART_SECONDS)
                self.committing = False
                self.between_commits()
        while self._folding:
            await asyncio.wait(self._folding)

    async def _pause(self, until: float) -> None:
        if len(self._pending) < ENOUGH and not self._closing and not self.all_wait():
            self._enough.clear()
            timer = asyncio.get_running_loop().call_at(until, self.hurry)
            await self._enough.wait()
            timer.cancel()

    def hurry(self) -> None:
        """End the pause that is under way."""
        self._enough.set()

    async def _commit(self, batch: list[Waiting], began: float) -> None:
        start = perf_counter()
        try:
            try:
                outcomes = await self.store.commit([waiting.entry for waiting in batch])
            finally:
                self._slow = False
            self.telemetry.append_seconds.observe(perf_counter() - start)
            written = list(zip(batch, outcomes, strict=True))
        except Exception as fault:  # whatever it is: no request may wait for ever
            self._degrade(fault)
            for waiting in batch:
                self._came(waiting, fault)
        else:
            await self._fold_written(written, began)
        self._drop_answered()

    async def _fold_written(self, written: Sequence[Written], began: float) -> None:
        """Fold what the log took, one experiment after another, and answer who waits. Where a long
        decision holds an experiment's lock, a task of its own does so, and the others go on."""
        events = dict[str, list[Written]]()
        for waiting, outcome in written:
            name = waiting.entry.experiment
            if isinstance(outcome, Appended) and name not in self.live:
                self.live[name] = Live(State(name), recovered=True)
            if waiting.event is None or name not in self.live:
                self._came(waiting, outcome)
            else:
                events.setdefault(name, []).append((waiting, outcome))
        for name, own in events.items():
            live = self.live[name]
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
            self._degrade(fault)
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
                    await self.fold(live, outcome.position, waiting.event)
                except FoldFailed as fault:
                    self.stop(live, fault)
                live.level_at = began
            elif outcome.position > live.state.position:
                await self.read_up(live)
                live.level_at = began
            elif live.level_at != began:  # nor has this commit read it up: a look will tell
                live.level_at = -inf
            await pace.keep()

    def _degrade(self, fault: Exception) -> None:
        if not self.degraded:
            bug = None if isinstance(fault, StoreError) else fault
            logger.error("the log cannot be written or folded: %s", fault, exc_info=bug)
            self.degraded = True
            self.telemetry.degraded.set(1)
            self.spawn(self._restore(str(fault)))

    async def _restore(self, told: str) -> None:
        """Try the log until it takes the buffered decisions, then serve as before.

        told   the fault that was said last
        """
        while self.degraded:
            await asyncio.sleep(RETRY_SECONDS)
            rows = self._buffer.oldest(PAGE)
            try:
                await self.store.commit(rows)  # even of none: it proves that the log can be written
                for live in self.live.values():  # what was appended though its answer was lost
                    async with live.lock:
                        await self.read_up(live)
            except Exception as fault:
                if str(fault) != told:
                    told = str(fault)
                    logger.error("the log is still gone: %s", fault)
                continue
            for row in rows:
                self._buffer.drop(row)
            if not self._buffer:
                self.degraded = False
                self.telemetry.degraded.set(0)
                logger.warning("the log can be written again")
