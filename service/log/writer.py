"""Writer: the one writer of the log. It commits all queued entries together, folds what the log
took, then answers. Where the log is gone or slow, decisions wait in memory.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import cast

from service.errors import FoldFailed, LogLost, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.buffer import Buffer, LogAnswer, Pending, StoredDecision
from service.log.commit_gate import CommitGate
from service.log.follower import Follower
from service.log.live import Live
from service.log.replay import PAGE, Pace
from service.log.stores import Store
from service.log.stores.base import (
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Kept,
    Known,
)
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import AnyEvent, Skipped
from service.state.fold import State

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.25

Committed = tuple[Pending, CommitResult]


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
        self._patience_seconds = settings.select_log_seconds
        self._append_seconds = telemetry.append_seconds
        self._degraded_gauge = telemetry.degraded
        self._queue: list[Pending] = []
        self._wake = asyncio.Event()
        self._buffer = Buffer(settings.buffer_decisions, settings.select_log_seconds, telemetry)
        self._drains: list[asyncio.Future[None]] = []
        self._folding: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        self._closing = False
        self._fault: Exception | None = None
        self.degraded = False

    @property
    def queued(self) -> int:
        """Entries that wait for the next commit."""
        return len(self._queue)

    @property
    def buffered(self) -> int:
        """Answered decisions that wait in memory for the log."""
        return len(self._buffer)

    @property
    def hopeless(self) -> bool:
        """The log is damaged, or not the one that was folded. It does not come back by itself, as a
        store that does not answer may."""
        fault = self._fault
        return isinstance(fault, StoreError) and not isinstance(fault, StoreUnavailable)

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Take no more entries, and commit those in the queue."""
        self._closing = True
        if self._writing:
            self._wake.set()
            await self._writing

    async def flush(self) -> None:
        """Commit the decisions that wait in memory. Raises StoreError."""
        try:
            if self._buffer:
                await self._commit_buffered(len(self._buffer))
        finally:
            if self._buffer:
                logger.error("%d answered decisions are lost to the log", len(self._buffer))

    # -- events --------------------------------------------------------------------------------

    async def append(self, entry: Append, event: AnyEvent) -> Appended | Known:
        """Make an event durable and fold it. Raises StoreUnavailable: nothing is acknowledged. A
        quarantined experiment takes what lifts the quarantine, and nothing else."""
        if not isinstance(event, Skipped):
            self._follower.state(entry.experiment)
        self._expect_log()
        result = await self._enqueue(entry, event).answer
        assert isinstance(result, Appended | Known)
        return result

    async def append_all(
        self, entries: Sequence[tuple[Entry, AnyEvent | None]]
    ) -> list[CommitResult | StoredDecision]:
        """`append` of each, in one commit. Raises StoreUnavailable."""
        self._expect_log()
        answers = [self._enqueue(entry, event).answer for entry, event in entries]
        results = await asyncio.gather(*answers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return cast("list[CommitResult | StoredDecision]", results)

    def _expect_log(self) -> None:
        if self.degraded:
            raise StoreUnavailable("the log cannot be written at present")

    def _enqueue(
        self,
        entry: Entry,
        event: AnyEvent | None = None,
        optional: DecisionRow | None = None,
        answer: LogAnswer | None = None,
    ) -> Pending:
        pending = Pending(entry, event, optional, answer)
        if self._closing:
            pending.answer.set_exception(StoreUnavailable("the service is shutting down"))
        else:
            self._queue.append(pending)
            self._wake.set()
        return pending

    # -- decisions -----------------------------------------------------------------------------

    async def keep(self, row: DecisionRow, *, required: bool) -> StoredDecision:
        """Log a decision, or let it wait in memory for a log that is gone or slow. An earlier one
        under its id stays.

        Raises StoreUnavailable where the answer is worth nothing without its row.
        """
        answer: LogAnswer = asyncio.get_running_loop().create_future()
        self.submit(row, required=required, answer=answer)
        stored = await answer
        assert isinstance(stored, StoredDecision)
        return stored

    def submit(self, row: DecisionRow, *, required: bool, answer: LogAnswer) -> None:
        """As `keep`; the result resolves `answer`."""
        if required and self.degraded:
            answer.set_exception(StoreUnavailable("the log cannot be written at present"))
        elif required:
            self._enqueue(row, None, None, answer)
        elif self.degraded or (self._buffer.slow and self._buffer.full) or self._closing:
            answer.set_result(self._buffer.answer(row))
        else:
            pending = self._enqueue(row, None, row, answer)
            if self._buffer.slow:
                answer.set_result(self._buffer.answer(row, may_be_logged=True))
            else:
                self._buffer.set_deadline(pending)

    async def decision(self, experiment: str, *ids: str) -> StoredDecision | None:
        """The decision of the first id that has one. Raises StoreUnavailable."""
        for own in ids:
            if (buffered := self._buffer.find(experiment, own)) is not None:
                return buffered
        found = await self._store.get(experiment, "decisions", ids)
        payloads = (found[own] for own in ids if own in found)
        return next((StoredDecision(each, logged=True) for each in payloads), None)

    async def decision_in_time(self, experiment: str, *ids: str) -> StoredDecision | None:
        """The same; where the log is gone or slow, as far as this process has it in memory."""
        if not (self.degraded or self._buffer.slow):
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(self._patience_seconds):
                    return await self.decision(experiment, *ids)
        found = (self._buffer.find(experiment, own) for own in ids)
        return next(filter(None, found), None)

    async def drain(self) -> None:
        """Wait until all decisions that were submitted are in the log, or back in memory. Raises
        StoreUnavailable."""
        if self._closing:
            raise StoreUnavailable("the service is shutting down")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.append(done)
        self._wake.set()
        await done

    def forget_unlogged(self, experiment: str, words: Sequence[str]) -> list[bytes]:
        """Drop the decisions in memory that hold one of these words; their payloads."""
        return self._buffer.forget(experiment, words)

    # -- commits -------------------------------------------------------------------------------

    async def _write(self) -> None:
        while self._queue or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            batch, self._queue = self._queue, []
            drains, self._drains = self._drains, []
            if batch:
                began = asyncio.get_running_loop().time()
                self._gate.begin()
                await self._commit(batch, began)
                self._gate.end()
            for done in drains:
                if not done.done():  # its request may be gone
                    done.set_result(None)
        while self._folding:
            await asyncio.wait(self._folding)

    async def _commit(self, batch: list[Pending], began: float) -> None:
        start = perf_counter()
        try:
            try:
                results = await self._store.commit([pending.entry for pending in batch])
            finally:
                self._buffer.slow = False
            self._append_seconds.observe(perf_counter() - start)
            committed = list(zip(batch, results, strict=True))
        except Exception as fault:  # whatever it is: no request may wait for ever
            self.degrade(fault)
            for pending in batch:
                self._fail(pending, fault)
        else:
            await self._fold(committed, began)
        self._buffer.drop_answered()

    async def _fold(self, committed: Sequence[Committed], began: float) -> None:
        """Fold and answer, one experiment after another. Where a long decision holds the lock of
        an experiment, a task of its own waits for it, and the others go on."""
        by_experiment, lives = dict[str, list[Committed]](), self._follower.live
        for pending, result in committed:
            name = pending.entry.experiment
            if isinstance(result, Appended) and name not in lives:
                lives[name] = Live(State(name), recovered=True, caught_up_at=began)
            if pending.event is None or name not in lives:
                self._answer(pending, result)
                if name in lives and isinstance(result, Kept) and result.number:
                    self._count_row(lives[name], result.number)
            else:
                by_experiment.setdefault(name, []).append((pending, result))
        for name, own in by_experiment.items():
            if lives[name].lock.locked():  # the lock serves the tasks in their order
                task = asyncio.create_task(self._fold_and_answer(lives[name], own, began))
                self._folding.add(task)
                task.add_done_callback(self._folding.discard)
            else:
                await self._fold_and_answer(lives[name], own, began)

    def _count_row(self, live: Live, number: int) -> None:
        """A number that comes again shows that the log has lost its last rows."""
        if number <= live.row:
            self._follower.report_loss(live, 0, live.row - number + 1)
        live.row = number

    async def _fold_and_answer(self, live: Live, own: list[Committed], began: float) -> None:
        """Of one experiment and one commit. An event at or after the one that the experiment is
        quarantined for is not acknowledged."""
        try:
            async with live.lock:
                await self._fold_own(live, own, began)
        except Exception as fault:
            self.degrade(fault)
            for pending, _ in own:
                self._fail(pending, fault)
            return
        stopped = live.quarantine
        for pending, result in own:
            if (
                stopped is not None
                and isinstance(result, Appended)
                and result.position >= stopped.position
                and not isinstance(pending.event, Skipped)
            ):
                self._fail(pending, stopped)
            else:
                self._answer(pending, result)

    async def _fold_own(self, live: Live, own: Sequence[Committed], began: float) -> None:
        """Fold, in slices, what the log took of one experiment; the caller holds the lock. Events
        of other processes in between are read first."""
        pace, read_to = Pace(), 0
        for pending, result in own:
            if live.quarantine is not None:
                return
            entry, event = pending.entry, pending.event
            if event is None or not isinstance(entry, Append) or not isinstance(result, Appended):
                continue
            if result.position <= read_to:
                continue
            if result.position != live.state.position + 1:
                await self._follower.fold_to_end(live)  # others wrote, or the log lost its end
                read_to = live.state.position
            elif live.digest and result.before not in ("", live.digest):
                others = f"experiment {live.state.name}: others precede {result.position}"
                await self._follower.recover_lost(live, LogLost(others))
                read_to = live.state.position
            else:
                try:
                    await self._follower.fold(live, result.position, event, entry.payload)
                except FoldFailed as fault:
                    self._follower.quarantine(live, fault)
                    return
                live.caught_up_at = max(live.caught_up_at, began)
            await pace.keep()

    def _answer(self, pending: Pending, result: CommitResult) -> None:
        """A request may be gone, or answered without the log."""
        if pending.answer.done():
            if pending.optional is not None:
                self._buffer.drop(pending.optional)
        elif isinstance(result, Kept) and isinstance(pending.entry, DecisionRow):
            payload = pending.entry.payload if result.earlier is None else result.earlier
            pending.answer.set_result(StoredDecision(payload, logged=True))
        else:
            pending.answer.set_result(result)

    def _fail(self, pending: Pending, fault: Exception) -> None:
        row = pending.optional
        if not pending.answer.done():
            if row is not None:
                pending.answer.set_result(self._buffer.answer(row))
            elif isinstance(fault, StoreUnavailable):
                pending.answer.set_exception(fault)
            else:
                pending.answer.set_exception(StoreUnavailable(str(fault)))
        elif row is not None:
            self._buffer.put(row)

    # -- a log that is gone --------------------------------------------------------------------

    def degrade(self, fault: Exception) -> None:
        """Refuse events, and answer decisions without the log, until it can be written again."""
        if not self.degraded:
            bug = None if isinstance(fault, StoreError) else fault
            logger.error("the log cannot be written or folded: %s", fault, exc_info=bug)
            self.degraded, self._fault = True, fault
            self._degraded_gauge.set(1)
            self._background.spawn(self._restore(str(fault)))

    async def _restore(self, last_fault: str) -> None:
        """Try the log until it takes the buffered decisions."""
        while self.degraded:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._commit_buffered(PAGE)  # an empty commit probes the store
                await self._follower.fold_all_to_end()  # also events whose answer was lost
            except Exception as fault:
                self._fault = fault
                if str(fault) != last_fault:
                    last_fault = str(fault)
                    logger.error("the log is still gone: %s", fault)
                continue
            if not self._buffer:
                self.degraded, self._fault = False, None
                self._degraded_gauge.set(0)
                logger.warning("the log can be written again")

    async def _commit_buffered(self, count: int) -> None:
        rows = self._buffer.oldest(count)
        await self._store.commit(rows)
        for row in rows:
            self._buffer.drop(row)
