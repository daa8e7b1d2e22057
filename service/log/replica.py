"""Replica: one experiment, folded from its log."""

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import takewhile
from math import inf
from typing import NamedTuple

from service.bandits.version import Version
from service.errors import (
    Damaged,
    FoldedBeforeSkipped,
    FoldFailed,
    LogGap,
    LogLost,
    Quarantined,
    RunFailed,
    StoreError,
    StoreUnavailable,
    UnknownSchema,
)
from service.log.catching_up import catch_up
from service.log.replay import (
    Pace,
    pages,
    read_event,
    record_at,
    skipped_positions,
    take_anchor,
)
from service.log.stores import Store
from service.log.stores.base import Record, Snapshot, digest
from service.state.artifacts import read_artifact
from service.state.events import (
    AnyEvent,
    Expired,
    Learned,
    LogTruncated,
    Rewarded,
    VersionStaged,
    decode_event,
    has_erased,
    settlements_of,
)
from service.state.fold import State

logger = logging.getLogger(__name__)

SHORTEST_RUN = 4
"""Settled decisions that are worth being folded at once."""


class ChangedExperiments:
    """Names of the experiments in which something was folded, recovered or lost."""

    def __init__(self) -> None:
        self._names = set[str]()
        self._some = asyncio.Event()
        self._beside: list[ChangedExperiments] = []

    def beside(self) -> "ChangedExperiments":
        """Return the same for a further reader."""
        self._beside.append(ChangedExperiments())
        return self._beside[-1]

    def add(self, name: str) -> None:
        self._names.add(name)
        self._some.set()
        for each in self._beside:
            each.add(name)

    async def take(self) -> set[str]:
        """Wait until there are some; those since the last call."""
        await self._some.wait()
        self._some.clear()
        names, self._names = self._names, set()
        return names


class ReadEvent(NamedTuple):
    """An event of the log. payload: as the log has it."""

    position: int
    event: AnyEvent
    payload: bytes


class Committed(NamedTuple):
    """An event that this process has appended. before: digest of the preceding event; empty where
    it is not known."""

    position: int
    before: str
    event: AnyEvent
    payload: bytes

    @property
    def read(self) -> ReadEvent:
        """The event as another process reads it."""
        return ReadEvent(self.position, self.event, self.payload)


class Watcher:
    """Is told what a replica folds; this one does nothing."""

    def folding(self, state: State, event: Learned) -> None:
        """Take note of rewards that are about to be folded: no head has learned them yet."""

    def snapshot_damaged(self) -> None:
        """Take note of a damaged snapshot that is passed over."""

    async def page_folded(self, replica: "Replica") -> None:
        """Take note of a page of events that a recovery has folded, under the replica's lock."""


class Replica:
    """One experiment and the lock under which it is folded.

    A log that cannot be folded quarantines its experiment, and no other: it is neither folded nor
    served until the event at fault is skipped, or a lost log is back.

    recovered      it has been folded to the log's end once
    digest         of the last folded event; empty where it is not known
    caught_up_at   by the loop's clock: all events appended before then are folded
    skips          positions of events that must not be folded
    quarantine     why it is neither folded any further nor served
    row            the highest number of a decision row that this process knows
    losses         times that the log had lost events or decision rows
    lost_to        the last position that this process knows to have been lost
    unlogged       losses not yet logged
    in_runs        it folds several events at once where the state lets it; never again once such a
                   run has failed
    erased         positions that new versions pass over, beside those erased before them
    """

    def __init__(
        self,
        store: Store,
        state: State,
        changed: ChangedExperiments | None = None,
        lock: asyncio.Lock | None = None,
        watcher: Watcher | None = None,
        erased: Set[int] = frozenset(),
    ) -> None:
        self._store, self._watcher = store, watcher or Watcher()
        self._erased = erased
        self._changed = changed or ChangedExperiments()
        self.lock = lock or asyncio.Lock()
        self.state, self.digest = state, state.digest
        self.recovered = False
        self.snapshot_position = 0
        self.caught_up_at = -inf
        self.skips = frozenset[int]()
        self.quarantine: Quarantined | None = None
        self.row = self.losses = self.lost_to = 0
        self.unlogged: list[LogTruncated] = []
        self.in_runs = True

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def serves(self) -> bool:
        return self.recovered and self.quarantine is None and not self.state.deleted

    @property
    def known_to(self) -> int:
        """The last position that the log has, or is known to have had."""
        return max(self.state.position, self.state.lost_to, self.lost_to)

    def served(self) -> State:
        """Return the state, which may be that of a deleted experiment. Raises Quarantined, or
        StoreUnavailable while it is folded anew."""
        if (stopped := self.quarantine) is not None:
            raise Quarantined(stopped.experiment, stopped.position, stopped.reason)
        if not self.recovered:
            raise StoreUnavailable(f"experiment {self.name} is being folded anew")
        return self.state

    # -- recovery ------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Fold the newest snapshot and the log after it; the caller holds the lock.

        Return the position of the newest snapshot that the log does not hold; 0: it holds all.
        Raises StoreUnavailable.
        """
        self.quarantine, self.recovered = None, False
        lost_to = 0
        with self._stopped_by_faults():
            self.skips = await skipped_positions(self._store, self.name)
            self._continue_from(State(self.name))
            lost_to = await self._restore_newest()
            self.snapshot_position = self.state.position
            await self._fold_to_end()
            self.row = (await self._store.describe(self.name)).row
            self.recovered = True
        self._changed.add(self.name)
        return lost_to

    async def lift(self) -> bool:
        """Serve a quarantined experiment again if the event at fault was skipped, or its lost log
        is back; whether it is served. Raises StoreUnavailable."""
        async with self.lock:
            if (stopped := self.quarantine) is None:
                return True
            if isinstance(stopped.__cause__, LogLost):
                if await self._is_back():
                    logger.warning("experiment %s: its log is back", self.name)
                    self.quarantine = None
                    await self.fold_to_end()
            elif stopped.position in await skipped_positions(self._store, self.name):
                await self.recover()
        return self.quarantine is None

    def _continue_from(self, state: State) -> None:
        self.state, self.digest = state, state.digest

    async def _restore_newest(self) -> int:
        """Replace an older state by the newest whole snapshot that the log continues; the result is
        that of `recover`. A damaged one is logged and passed over."""
        lost_to = 0
        for snapshot in await self._store.snapshots(self.name):
            if snapshot.position <= self.state.position:
                break
            state = self._read_snapshot(snapshot)
            if state is None:
                continue
            if any(one <= state.position and one not in state.skips for one in self.skips):
                continue  # it holds what has been skipped since
            if await self._holds_last(state, state.digest):
                self._continue_from(state)
                self.snapshot_position = snapshot.position
                break
            logger.error(
                "experiment %s: the snapshot at position %d is passed over: the log does not hold "
                "its last event",
                self.name,
                snapshot.position,
            )
            lost_to = max(lost_to, snapshot.position)
        return lost_to

    def _read_snapshot(self, snapshot: Snapshot) -> State | None:
        """Read a snapshot; None where it is damaged."""
        try:
            return State.restore(snapshot)
        except Damaged as fault:
            self._watcher.snapshot_damaged()
            logger.error(
                "experiment %s: the snapshot at position %d is damaged (%s): "
                "an older one or the whole log is used",
                self.name,
                snapshot.position,
                fault,
            )
            return None

    # -- the fold ------------------------------------------------------------------------------

    async def apply(self, position: int, event: AnyEvent, payload: bytes | None = None) -> None:
        """Fold one event; the caller holds the lock. Raises FoldFailed: the state may then hold a
        part of it.

        payload   as the log has it; left out by readers, which fold each event once
        """
        version = None
        self._tell(event)
        try:
            if isinstance(event, VersionStaged):
                version = await self._version(event)
            self.state.apply(position, event, version)
        except (StoreUnavailable, LogGap, UnknownSchema, FoldedBeforeSkipped):
            raise
        except Exception as fault:
            raise FoldFailed(position, fault) from fault
        self.digest = "" if payload is None else digest(payload)
        self._changed.add(self.name)

    def _tell(self, event: AnyEvent) -> None:
        if self.recovered:
            for settlement in settlements_of(event):
                self._watcher.folding(self.state, settlement)

    async def apply_all(self, read: Sequence[ReadEvent], pace: Pace) -> None:
        """Fold events that follow each other, in runs where that can be done; the caller holds the
        lock. Raises as `apply`, or RunFailed: the state may then hold a part of a run."""
        for run in self._runs(read):
            together = len(run) > 1 or (self.in_runs and self.state.runs_with(run[0].event))
            if not together or sum(_size(one.event) for one in run) < SHORTEST_RUN:
                for position, event, payload in run:
                    await self.apply(position, event, payload)
                    await pace.keep()
            else:
                self._apply_run(run)
                await pace.keep()

    def _runs(self, read: Sequence[ReadEvent]) -> Iterator[Sequence[ReadEvent]]:
        """Yield events in order; together those that the state `runs_with`, which it tells once the
        ones before are folded."""
        start = 0
        while start < len(read):
            end, left = start, self.state.longest_run if self.in_runs else 0
            while end < len(read) and left > 0 and self.state.runs_with(read[end].event):
                left -= _size(read[end].event)
                end += 1
            end = max(end, start + 1)
            yield read[start:end]
            start = end

    def _apply_run(self, run: Sequence[ReadEvent]) -> None:
        """Fold events that the state `runs_with` at once. Raises LogGap or RunFailed."""
        events = [one.event for one in run if isinstance(one.event, Rewarded | Expired)]
        for event in events:
            self._tell(event)
        try:
            self.state.apply_run(run[0].position, events)
        except LogGap:
            raise
        except Exception as fault:
            raise RunFailed(f"experiment {self.name}: a run of events: {fault}") from fault
        self.digest = digest(run[-1].payload)
        self._changed.add(self.name)

    async def apply_committed(self, events: Sequence[Committed], began: float) -> None:
        """Fold, in slices, what a commit of this process has appended; the caller holds the lock.
        Events of other processes in between are read first. Raises StoreUnavailable.

        began   when the commit did, by the loop's clock
        """
        pace, read_to, place = Pace(), 0, 0
        with self._stopped_by_faults():
            while place < len(events) and self.quarantine is None:
                first, count = events[place], 1
                if first.position <= read_to:
                    pass
                elif first.position != self.state.position + 1:
                    await self._fold_to_end()  # others wrote, or the log lost its end
                    read_to = self.state.position
                elif self.digest and first.before not in ("", self.digest):
                    others = f"experiment {self.name}: others precede {first.position}"
                    await self._recover_lost(LogLost(others))
                    read_to = self.state.position
                else:
                    adjacent = _adjacent(events[place:])
                    count = len(adjacent)
                    try:
                        await self.apply_all(adjacent, pace)
                        self.caught_up_at = max(self.caught_up_at, began)
                    except RunFailed as fault:
                        await self._recover_singly(fault)
                        read_to = self.state.position
                    except (LogGap, FoldedBeforeSkipped):
                        await self._fold_to_end()  # from a snapshot, or anew
                        read_to = self.state.position
                place += count

    async def fold_to_end(self) -> None:
        """Fold the log up to its end, or quarantine the experiment where that cannot be done; the
        caller holds the lock. Raises StoreUnavailable."""
        with self._stopped_by_faults():
            await self._fold_to_end()

    async def _fold_to_end(self) -> None:
        """Fold the log up to its end or an event that cannot be folded.

        Where the log no longer holds the last folded event, the state is folded anew: a Redis host
        may come back without its last writes, and give their numbers again. Raises LogLost where
        such a log is empty, LogGap where the log begins later, or with what was erased, and no
        snapshot does.
        """
        while self.quarantine is None:
            began = asyncio.get_running_loop().time()
            try:
                await self._fold_pages()
                self.caught_up_at = began
                return
            except LogLost as fault:
                await self._recover_lost(fault)
            except RunFailed as fault:
                await self._recover_singly(fault)
            except FoldedBeforeSkipped as fault:
                logger.warning("%s: the log is folded anew", fault)
                await self.recover()
            except (LogGap, FoldFailed) as fault:
                before = self.state.position
                await self._restore_newest()
                if self.state.position <= before:
                    raise
                logger.warning("%s; the snapshot at %d is taken", fault, self.state.position)

    async def _recover_singly(self, fault: RunFailed) -> None:
        """Fold the log anew, one event at a time: that tells the one at fault."""
        logger.warning("%s: the log is folded anew", fault)
        self.in_runs = False
        await self.recover()

    async def catch_up(self) -> bool:
        """Fold what other processes have appended; whether there was anything. Callers that wait
        together share one read. Raises StoreUnavailable."""
        asked, position = asyncio.get_running_loop().time(), self.state.position
        async with self.lock:
            if self.caught_up_at <= asked:
                await self.fold_to_end()
        return self.state.position > position

    @contextmanager
    def _stopped_by_faults(self) -> Iterator[None]:
        """Quarantine the experiment at any fault but those of an unreachable store."""
        try:
            yield
        except StoreUnavailable:
            raise
        except Exception as fault:
            at = fault.position if isinstance(fault, FoldFailed) else None
            reason = fault.reason if isinstance(fault, FoldFailed) else str(fault)
            reason = reason.removeprefix(f"experiment {self.name}: ")
            self.quarantine = Quarantined(self.name, at, reason)
            self.quarantine.__cause__ = fault
            bug = None if isinstance(fault, StoreError) else fault
            logger.error("%s", self.quarantine, exc_info=fault.__cause__ or bug)

    async def _fold_pages(self) -> None:
        anchored, pace = self.digest != "", Pace()
        async for page in pages(self._store, self.name, self.state.position - anchored):
            if anchored:
                await self._expect_anchor(take_anchor(page, self.state.position))
                anchored = False
            read, fault = _read_all(page, self.skips)
            await self.apply_all(read, pace)
            if fault is not None:
                raise fault
            if not self.recovered:
                await self._watcher.page_folded(self)
        if anchored:
            await self._expect_anchor(None)

    async def _expect_anchor(self, record: Record | None) -> None:
        """Raise LogLost unless the log holds the last folded event. record: one in its place."""
        if not await self._holds_last(self.state, self.digest, record):
            raise LogLost(
                f"experiment {self.name}: the log does not hold the event at position "
                f"{self.state.position} that is folded"
            )

    async def _holds_last(self, state: State, known: str, record: Record | None = None) -> bool:
        """Say whether the last event of a state is in the log as it was folded, or erased since, or
        trimmed. known: its digest."""
        record = record or await record_at(self._store, self.name, state.position)
        if record is None:
            return (await self._store.describe(self.name)).position >= state.position
        if known in ("", digest(record.payload)):
            return True
        return has_erased(_read(record, frozenset()))

    # -- a log that has lost events ------------------------------------------------------------

    async def _recover_lost(self, fault: LogLost) -> None:
        """Go on with what the log holds; the caller holds the lock. Raises LogLost where it was
        emptied, also if processes have appended to it since, or defined the experiment anew: then
        its operator has to say whether a backup is to be restored."""
        position, row = self.state.position, self.row
        found = Replica(self._store, State(self.name), self._changed, self.lock)
        self.recovered = False
        try:
            lost_to = max(position, await found.recover())
        finally:
            self.recovered = True
        if found.quarantine is not None and found.quarantine.position is None:
            raise LogLost(found.quarantine.reason)
        begun = self.state.first_at, found.state.first_at
        if self.state.revision and begun[0] != begun[1] and found.quarantine is None:
            raise LogLost(
                f"the log was emptied, and {position} events of it were folded: restore a backup, "
                "or start this process again to begin anew"
            )
        logger.error("%s: the state was folded anew", fault)
        self.state, self.digest = found.state, found.digest
        self.snapshot_position, self.row = found.snapshot_position, found.row
        self.skips, self.quarantine = found.skips, found.quarantine
        self.report_loss(lost_to, max(0, row - found.row))

    async def _is_back(self) -> bool:
        """Say whether a log that was lost begins as it did, as a backup does. One that was begun
        anew, by a process that met it empty, does not."""
        first = await record_at(self._store, self.name, 1)
        if first is None:  # empty, or trimmed
            return (await self._store.describe(self.name)).position > 0
        return decode_event(first.payload).at == self.state.first_at

    def report_loss(self, last: int, rows: int = 0) -> None:
        """Tell that the log has lost the events up to `last`, or decision rows."""
        self.losses += 1
        self.lost_to = max(self.lost_to, last)
        lost = [f"events up to position {last} or beyond"] * bool(last)
        lost += [f"{rows} decision rows or more"] * bool(rows)
        held = self.state.position
        logger.error(
            "experiment %s: the log has lost %s; it holds %d events",
            self.name,
            " and ".join(lost),
            held,
        )
        self.unlogged.append(LogTruncated(at=0.0, held=held, last=last, rows=rows))
        self._changed.add(self.name)

    def count_row(self, number: int) -> None:
        """Note the number of a new decision row. One that comes again shows that the log has lost
        its last rows."""
        if number <= self.row:
            self.report_loss(0, self.row - number + 1)
        self.row = number

    async def reach(self, position: int) -> None:
        """Wait until the state has an event that this process appended: it folds them first."""

    async def expect(self, position: int) -> None:
        """Report a loss if the log, which once had this position, ends before it. Raises
        StoreUnavailable, also where the experiment is quarantined."""
        async with self.lock:
            if position > self.known_to:
                await self.fold_to_end()  # another process may be ahead
            self.served()
            if position > self.known_to:
                self.report_loss(position)

    # -- versions ------------------------------------------------------------------------------

    async def _version(self, event: VersionStaged) -> Version | None:
        """Return the version that is staged, caught up; None where no policy takes it, or its
        artifact is gone. Raises Damaged, or as `catch_up`."""
        learner = self.state.awaits(event)
        artifact = None if learner is None else await self._artifact(event.artifact)
        if learner is None or artifact is None:
            return None
        version = read_artifact(learner, artifact)
        await catch_up(self._store, self.state, learner, version, self.skips, self._erased)
        return version

    async def _artifact(self, name: str) -> bytes | None:
        """Read an artifact. Raises Damaged where it has another content than its name says."""
        artifact = await self._store.blob(self.name, name)
        if artifact and hashlib.sha256(artifact).hexdigest() != name:
            raise Damaged(f"artifact {name} has another content than its name says")
        return artifact


def _size(event: AnyEvent) -> int:
    """Return how many decisions an event settles, which tells how long its fold takes."""
    return len(event.decisions) if isinstance(event, Expired) else 1


def _adjacent(events: Sequence[Committed]) -> list[ReadEvent]:
    """Return the first events, as far as each follows the one before it."""
    places = enumerate(events, events[0].position)
    return [one.read for _, one in takewhile(lambda each: each[0] == each[1].position, places)]


def _read_all(
    page: Sequence[Record], skips: frozenset[int]
) -> tuple[list[ReadEvent], StoreError | None]:
    """Read events from their records, up to the first that cannot be read; why it cannot, or
    None."""
    read = list[ReadEvent]()
    for record in page:
        try:
            read.append(ReadEvent(record.position, _read(record, skips), record.payload))
        except StoreError as fault:
            return read, fault
    return read, None


def _read(record: Record, skips: frozenset[int]) -> AnyEvent:
    """Read an event from its record. Raises FoldFailed, or UnknownSchema."""
    try:
        return read_event(record, skips)
    except Damaged as fault:
        raise FoldFailed(record.position, fault) from fault
