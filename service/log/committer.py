"""Committer: writes the log. `run` is the only place where the order of the log is decided."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from service.clock import SYSTEM, Clock
from service.errors import StoreError, StoreUnavailable
from service.log.background import Background
from service.log.replica import Committed, Replica
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.stores.base import Append, Appended, DecisionRow, MarkConflict, RowStored
from service.log.unlogged import StoredDecision, Unlogged
from service.settings import Settings
from service.state.events import AnyEvent, Exposed, Skipped, encode_event
from service.state.fold import State
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.25

DRAINED_BYTES = 1_048_576
"""Rows out of memory that share a commit with the live traffic. They lengthen it by some 10 ms."""

EventAnswer = asyncio.Future[Appended | MarkConflict]


class RowAnswer(Protocol):
    """Takes what the log holds under the id of a decision, as a future of it does."""

    def done(self) -> bool: ...

    def set_result(self, result: StoredDecision, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class PendingEvent(msgspec.Struct, eq=False):
    """An event on its way into the log, and the answer to the request that waits for it."""

    entry: Append
    event: AnyEvent
    answer: EventAnswer


class PendingRow(msgspec.Struct, eq=False):
    """A decision on its way into the log, and the answer to the request that waits for it.

    optional   it may be answered before it is in the log
    deadline   for that, by the loop's clock
    """

    entry: DecisionRow
    answer: RowAnswer
    optional: bool = False
    deadline: float = 0.0


Pending = PendingEvent | PendingRow

Submission = tuple[Append, AnyEvent] | DecisionRow
"""What one commit takes: an event with its entry, or a decision row."""


class Committer:
    """Commits all queued entries together, folds the events that the log took, then answers. After
    `append` returns, the event is durable and in the state.

    Where the log is gone or slow, decisions are answered without it, and wait in memory. Once it is
    back, they share the commits of the live traffic until all are written.

    degraded    the store fails commits at present, or the reads of a fold
    slow        a decision timed out waiting for the commit under way
    under_way   the commit; done when it has ended
    """

    def __init__(
        self,
        store: Store,
        replicas: Replicas,
        background: Background,
        settings: Settings,
        telemetry: Telemetry,
        clock: Clock = SYSTEM,
    ) -> None:
        self._store, self._replicas, self._background = store, replicas, background
        self._patience_seconds = settings.select_log_seconds
        self._telemetry, self._clock = telemetry, clock
        self._queue: list[Pending] = []
        self._batch: list[Pending] = []
        self._wake = asyncio.Event()
        self._unlogged = Unlogged(settings.buffer_bytes, telemetry, clock)
        self._alarm: asyncio.TimerHandle | None = None
        self._drains: list[asyncio.Future[None]] = []
        self._restoring = asyncio.Lock()
        self._closing = False
        self._fault: Exception | None = None
        self._counted: dict[str, list[tuple[int, str]]] = {}
        self.degraded = self.slow = False
        self.under_way: asyncio.Future[None] | None = None

    @property
    def queued(self) -> int:
        """Entries that wait for the next commit."""
        return len(self._queue)

    @property
    def buffered(self) -> int:
        """Answered decisions that wait in memory for the log."""
        return len(self._unlogged)

    @property
    def buffer_seconds(self) -> float:
        """Seconds that an outage of the log may last until decisions are lost, at the present
        rate."""
        return self._unlogged.seconds_left()

    @property
    def hopeless(self) -> bool:
        """The store is damaged. It does not come back by itself, as one that does not answer
        may."""
        fault = self._fault
        return isinstance(fault, StoreError) and not isinstance(fault, StoreUnavailable)

    # -- events --------------------------------------------------------------------------------

    async def append(self, entry: Append, event: AnyEvent) -> Appended | MarkConflict:
        """Make an event durable and fold it. Raises StoreUnavailable: nothing is acknowledged. A
        quarantined experiment takes what lifts the quarantine, and nothing else."""
        if not isinstance(event, Skipped):
            self._replicas.state(entry.experiment)
        self._expect_log()
        return await self._enqueue(entry, event)

    async def append_all(
        self, entries: Sequence[Submission]
    ) -> list[Appended | MarkConflict | StoredDecision]:
        """`append` each event, and `record` each row, in one commit. Raises StoreUnavailable."""
        for name in {_entry_of(each).experiment for each in entries}:
            self._replicas.state(name)
        self._expect_log()
        answers = [
            self._enqueue_row(each) if isinstance(each, DecisionRow) else self._enqueue(*each)
            for each in entries
        ]
        results, faults = list[Appended | MarkConflict | StoredDecision](), list[StoreUnavailable]()
        for answer in answers:  # one commit resolves them: the first wait is the only one
            try:
                results.append(await answer)
            except StoreUnavailable as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return results

    def _expect_log(self) -> None:
        if self.degraded:
            raise StoreUnavailable("the log cannot be written at present")

    def _enqueue(self, entry: Append, event: AnyEvent) -> EventAnswer:
        answer: EventAnswer = asyncio.get_running_loop().create_future()
        self._take(PendingEvent(entry, event, answer))
        return answer

    def _enqueue_row(self, row: DecisionRow) -> asyncio.Future[StoredDecision]:
        answer: asyncio.Future[StoredDecision] = asyncio.get_running_loop().create_future()
        self._take(PendingRow(row, answer))
        return answer

    def _take(self, pending: Pending) -> None:
        if self._closing:
            pending.answer.set_exception(StoreUnavailable("the service is shutting down"))
        else:
            self._queue.append(pending)
            self._wake.set()

    # -- decisions -----------------------------------------------------------------------------

    async def record(self, row: DecisionRow, *, required: bool) -> StoredDecision:
        """Log a decision, or let it wait in memory for a log that is gone or slow. An earlier one
        under its id stays.

        Raises StoreUnavailable where the answer is worth nothing without its row (`required`).
        """
        answer: asyncio.Future[StoredDecision] = asyncio.get_running_loop().create_future()
        self.submit(row, required=required, answer=answer)
        return await answer

    def submit(self, row: DecisionRow, *, required: bool, answer: RowAnswer) -> None:
        """Do as `record`; the result resolves `answer`."""
        unlogged = self._unlogged
        unlogged.count(row)
        if unlogged and (earlier := unlogged.find(row.experiment, row.id)) is not None:
            answer.set_result(earlier)  # a key that was answered without the log before
        elif required and self.degraded:
            answer.set_exception(StoreUnavailable("the log cannot be written at present"))
        elif required:
            self._take(PendingRow(row, answer))
        elif self.degraded or (self.slow and not unlogged.has_room_for(row)) or self._closing:
            answer.set_result(unlogged.answer(row))
        elif self.slow:
            self._take(PendingRow(row, answer, optional=True))
            answer.set_result(unlogged.answer(row, may_be_logged=True))
        else:
            deadline = asyncio.get_running_loop().time() + self._patience_seconds
            self._take(PendingRow(row, answer, optional=True, deadline=deadline))
            if self._alarm is None:
                self._set_alarm(deadline)

    def _set_alarm(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_at(deadline, self._answer_overdue)

    def _answer_overdue(self) -> None:
        """Answer the decisions that wait, once the oldest has waited too long: those after it would
        wait in vain for the same commit."""
        self._alarm = None
        optional = [
            each
            for each in (*self._batch, *self._queue)
            if isinstance(each, PendingRow) and each.optional and not each.answer.done()
        ]
        if not optional:
            return
        if (deadline := optional[0].deadline) > asyncio.get_running_loop().time():
            self._set_alarm(deadline)
            return
        self.slow = True
        for pending in optional:
            pending.answer.set_result(self._unlogged.answer(pending.entry, may_be_logged=True))

    async def decision(self, experiment: str, *ids: str) -> StoredDecision | None:
        """Return the decision of the first id that has one. Raises StoreUnavailable."""
        if (unlogged := self._unlogged_decision(experiment, ids)) is not None:
            return unlogged
        found = await self._store.get(experiment, "decisions", ids)
        payloads = (found[own] for own in ids if own in found)
        return next((StoredDecision(each, logged=True) for each in payloads), None)

    async def decisions(self, experiment: str, ids: Sequence[str]) -> dict[str, StoredDecision]:
        """Return the decisions of those ids that have one. Raises StoreUnavailable."""
        stored = await self._store.get(experiment, "decisions", ids)
        found = {own: StoredDecision(payload, logged=True) for own, payload in stored.items()}
        unlogged = {own: self._unlogged.find(experiment, own) for own in ids}
        return found | {own: each for own, each in unlogged.items() if each is not None}

    async def decision_in_time(self, experiment: str, *ids: str) -> StoredDecision | None:
        """Return what `decision` does; where the log is gone or slow, what this process has in
        memory."""
        if not (self.degraded or self.slow):
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(self._patience_seconds):
                    return await self.decision(experiment, *ids)
        return self._unlogged_decision(experiment, ids)

    def _unlogged_decision(self, experiment: str, ids: Sequence[str]) -> StoredDecision | None:
        found = (self._unlogged.find(experiment, own) for own in ids)
        return next(filter(None, found), None)

    def forget_unlogged(self, experiment: str, words: Sequence[str]) -> list[bytes]:
        """Drop the decisions in memory that hold one of these words. Return their payloads."""
        return self._unlogged.forget(experiment, words)

    def take_counted(self, state: State) -> list[str]:
        """Return the ids of this process's decisions that a state has counted since the last call
        (`Exposed`)."""
        known, position = self._counted.get(state.name, []), state.position
        self._counted[state.name] = [one for one in known if one[0] > position]
        return [decision for at, decision in known if at <= position]

    async def drain(self) -> None:
        """Wait until all decisions that were submitted are in the log, or in memory since the log
        is gone; none is on its way between them. Raises StoreUnavailable."""
        if self._closing:
            raise StoreUnavailable("the service is shutting down")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.append(done)
        self._wake.set()
        await done
        async with self._restoring:  # what `_restore` has taken is in the log, or in memory again
            pass

    # -- commits -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit what is queued, batch after batch, until `close`."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as held_up:
            while self._queue or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                self._batch, self._queue = [*self._queue, *self._unlogged_entries()], []
                self._batch += self._counting(self._batch)
                drains, self._drains = self._drains, []
                if self._batch:
                    self.under_way = loop.create_future()
                    await self._commit(self._batch, held_up)
                    self.under_way.set_result(None)
                    self.under_way, self._batch, self.slow = None, [], False
                    await asyncio.sleep(0)  # decisions that waited for its end share the next one
                if self._unlogged and not self.degraded:
                    self._drains += drains
                    self._wake.set()
                    continue
                for done in drains:
                    if not done.done():  # its request may be gone
                        done.set_result(None)

    def _unlogged_entries(self) -> list[PendingRow]:
        """Return the oldest decisions in memory; none if the log is gone or the queue has them."""
        if self.degraded or not self._unlogged:
            return []
        answered: asyncio.Future[StoredDecision] = asyncio.get_running_loop().create_future()
        answered.cancel()
        queued = {id(each.entry) for each in self._queue}
        rows = self._unlogged.oldest(DRAINED_BYTES)
        return [PendingRow(row, answered, True) for row in rows if id(row) not in queued]

    @staticmethod
    def _counting(batch: Sequence[Pending]) -> list[PendingEvent]:
        """Return what counts the rows of a batch; nobody waits for it."""
        nobody: EventAnswer = asyncio.get_running_loop().create_future()
        nobody.cancel()
        rows = (each.entry for each in batch if isinstance(each, PendingRow))
        return [PendingEvent(entry, event, nobody) for entry, event in _exposures(rows)]

    async def _commit(self, batch: list[Pending], held_up: asyncio.TaskGroup) -> None:
        """Commit, fold, answer, one experiment after another. Where a long decision holds the lock
        of an experiment, a task of its own waits for it, and the others go on."""
        began, start = asyncio.get_running_loop().time(), self._clock.monotonic()
        try:
            results = await self._store.commit([pending.entry for pending in batch])
            committed = list(zip(batch, results, strict=True))
        except Exception as fault:  # whatever it is: no request may wait for ever
            self.degrade(fault)
            for pending in batch:
                self._fail(pending, fault)
            return
        finally:
            self.slow = False
        self._telemetry.append_seconds.observe(self._clock.monotonic() - start)
        events = dict[str, list[tuple[PendingEvent, Appended | MarkConflict]]]()
        for pair in committed:
            match pair:
                case PendingRow() as row, RowStored() as kept:
                    self._answer_row(row, kept)
                case PendingEvent() as pending, (Appended() | MarkConflict()) as result:
                    events.setdefault(pending.entry.experiment, []).append((pending, result))
                case _:
                    raise TypeError("a store answers an event with its position or its marks")
        for name, own in events.items():
            replica = self._replicas.by_name.get(name)
            if replica is None and not any(isinstance(result, Appended) for _, result in own):
                for pending, result in own:
                    _answer(pending, result)
                continue
            replica = replica or self._replicas.create(name, began)
            if replica.lock.locked():  # the lock serves the tasks in their order
                held_up.create_task(self._fold_and_answer(replica, own, began))
            else:
                await self._fold_and_answer(replica, own, began)

    async def _fold_and_answer(
        self,
        replica: Replica,
        own: list[tuple[PendingEvent, Appended | MarkConflict]],
        began: float,
    ) -> None:
        """Fold and answer the events of one experiment in one commit. An event at or after the one
        that the experiment is quarantined for is not acknowledged."""
        events = [
            Committed(result.position, result.before, pending.event, pending.entry.payload)
            for pending, result in own
            if isinstance(result, Appended)
        ]
        try:
            async with replica.lock:
                await replica.apply_committed(events, began)
        except Exception as fault:
            self.degrade(fault)
            for pending, _ in own:
                self._fail(pending, fault)
            return
        for pending, result in own:
            if isinstance(pending.event, Exposed) and isinstance(result, Appended):
                self._count(pending.entry.experiment, pending.event, result)
        stopped = replica.quarantine
        for pending, result in own:
            if (
                stopped is not None
                and isinstance(result, Appended)
                and (stopped.position is None or result.position >= stopped.position)
                and not isinstance(pending.event, Skipped)
            ):
                self._fail(pending, stopped)
            else:
                _answer(pending, result)

    def _answer_row(self, pending: PendingRow, result: RowStored) -> None:
        """Answer a request, which may be gone, or answered without the log."""
        if pending.answer.done():
            if pending.optional:
                self._unlogged.drop(pending.entry)
        else:
            payload = pending.entry.payload if result.earlier is None else result.earlier
            pending.answer.set_result(StoredDecision(payload, logged=True))
        replica = self._replicas.by_name.get(pending.entry.experiment)
        if result.number and replica is not None:
            replica.count_row(result.number)

    def _fail(self, pending: Pending, fault: Exception) -> None:
        if isinstance(pending, PendingRow) and pending.optional:
            if pending.answer.done():
                self._unlogged.put(pending.entry)
            else:
                pending.answer.set_result(self._unlogged.answer(pending.entry))
        elif not pending.answer.done():
            unavailable = isinstance(fault, StoreUnavailable)
            pending.answer.set_exception(fault if unavailable else StoreUnavailable(str(fault)))

    # -- a log that is gone --------------------------------------------------------------------

    async def probe(self) -> None:
        """Degrade if the log cannot be written."""
        try:
            await self._store.commit([])
        except Exception as fault:
            self.degrade(fault)

    def degrade(self, fault: Exception) -> None:
        """Refuse events, and answer decisions without the log, until it can be written again."""
        if not self.degraded:
            bug = None if isinstance(fault, StoreError) else fault
            logger.error("the log cannot be written or folded: %s", fault, exc_info=bug)
            self.degraded, self._fault = True, fault
            self._telemetry.degraded.set(1)
            self._background.spawn(self._restore(str(fault)))

    async def _restore(self, last_fault: str) -> None:
        """Try the log until a commit and a fold succeed."""
        while self.degraded:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._commit_unlogged()  # an empty commit probes the store
                await self._replicas.fold_all_to_end()  # also events whose answer was lost
            except Exception as fault:
                self._fault = fault
                if str(fault) != last_fault:
                    last_fault = str(fault)
                    logger.error("the log is still gone: %s", fault)
                continue
            self.degraded, self._fault = False, None
            self._telemetry.degraded.set(0)
            self._wake.set()  # the other decisions in memory
            logger.warning("the log can be written again")

    async def _commit_unlogged(self) -> None:
        """Commit the oldest decisions in memory. Raises StoreError."""
        async with self._restoring:
            rows = self._unlogged.oldest(DRAINED_BYTES)
            counting = _exposures(rows)
            results = await self._store.commit([*rows, *(one for one, _ in counting)])
            for row in rows:
                self._unlogged.drop(row)
        for (entry, event), result in zip(counting, results[len(rows) :], strict=True):
            if isinstance(result, Appended):
                self._count(entry.experiment, event, result)

    def _count(self, experiment: str, event: Exposed, appended: Appended) -> None:
        counted = self._counted.setdefault(experiment, [])
        counted += [(appended.position, decision) for decision, _, _ in event.decisions]

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more entries; `run` ends once it has committed those in the queue."""
        self._closing = True
        self._wake.set()

    async def flush(self) -> None:
        """Commit the decisions that wait in memory. Raises StoreError."""
        try:
            while self._unlogged:
                await self._commit_unlogged()
        finally:
            if self._unlogged:
                logger.error("%d answered decisions are lost to the log", len(self._unlogged))


def _entry_of(logged: Submission) -> Append | DecisionRow:
    return logged if isinstance(logged, DecisionRow) else logged[0]


def _exposures(rows: Iterable[DecisionRow]) -> list[tuple[Append, Exposed]]:
    """Return an event, and its entry, for each experiment with rows that rules count: the log has
    rows and counts, or neither."""
    counted = dict[str, list[tuple[str, float, dict[str, list[str]]]]]()
    for row in rows:
        if row.exposed is not None:
            counted.setdefault(row.experiment, []).append((row.id, *row.exposed))
    found = list[tuple[Append, Exposed]]()
    for name, decisions in counted.items():
        event = Exposed(at=max(at for _, at, _ in decisions), decisions=decisions)
        found.append((Append(name, encode_event(event), {}), event))
    return found


def _answer(pending: PendingEvent, result: Appended | MarkConflict) -> None:
    """Answer a request, which may be gone."""
    if not pending.answer.done():
        pending.answer.set_result(result)
