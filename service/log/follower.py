"""Follower: states folded from a log that is read and not written."""

import asyncio
import logging
from collections.abc import Collection
from math import inf

from service.errors import (
    Damaged,
    FoldedBeforeSkipped,
    FoldFailed,
    LogGap,
    LogLost,
    Quarantined,
    StoreError,
    StoreUnavailable,
    UnknownSchema,
)
from service.log.background import Background
from service.log.live import Live
from service.log.replay import (
    Pace,
    pages,
    read_event,
    record_at,
    skipped_positions,
    take_anchor,
)
from service.log.staged_versions import StagedVersions
from service.log.stores import Store
from service.log.stores.base import Record, digest
from service.observability.telemetry import Telemetry
from service.state.events import (
    AnyEvent,
    Learned,
    LogTruncated,
    Tombstone,
    VersionActivated,
    VersionStaged,
)
from service.state.fold import State

logger = logging.getLogger(__name__)


class Follower:
    """Recovers experiments from snapshot and tail, and follows their logs. Where a log has been cut
    or erased ahead of it, it continues from a newer snapshot.

    An event that cannot be folded quarantines its experiment, which alone is neither folded nor
    served until the event is skipped.
    """

    def __init__(
        self,
        store: Store,
        telemetry: Telemetry,
        background: Background | None = None,
    ) -> None:
        self._store, self._telemetry = store, telemetry
        self._background = background or Background()
        self.versions = StagedVersions(store)
        self._moved: set[str] = set()
        self._move = asyncio.Event()
        self._delayed: set[str] = set()
        self.live: dict[str, Live] = {}

    @property
    def states(self) -> dict[str, State]:
        """Of the served experiments."""
        return {
            name: live.state
            for name, live in self.live.items()
            if live.recovered and live.quarantine is None and not live.state.deleted
        }

    @property
    def names(self) -> list[str]:
        """Of the served and the quarantined experiments."""
        return [
            name
            for name, live in self.live.items()
            if live.quarantine is not None or not (live.recovered and live.state.deleted)
        ]

    @property
    def policies(self) -> dict[str, Collection[str]]:
        """Of each of these experiments."""
        return {name: self.live[name].state.learners for name in self.names}

    @property
    def quarantined(self) -> dict[str, Quarantined]:
        return {name: live.quarantine for name, live in self.live.items() if live.quarantine}

    @property
    def caught_up_at(self) -> float:
        """By the loop's clock: all events appended before then are folded, but for quarantines."""
        served = (live.caught_up_at for live in self.live.values() if live.quarantine is None)
        return min(served, default=inf)

    def state(self, name: str) -> State | None:
        """Raises Quarantined, or StoreUnavailable while it is folded anew."""
        live = self.live.get(name)
        if live is None:
            return None
        state = _served(live)
        return None if state.deleted else state

    async def discover(self, name: str) -> State:
        """The state of an experiment, recovered from the store, or empty where it has none. Raises
        as `state`."""
        return _served(await self.join(name))

    async def catch_up(self, name: str) -> bool:
        """Fold what other processes have appended to an experiment; whether there was anything.
        Callers that wait together share one read."""
        live = self.live.get(name)
        if live is None or not self._store.shared:
            return False
        asked, position = asyncio.get_running_loop().time(), live.state.position
        async with live.lock:
            if live.caught_up_at <= asked:
                try:
                    await self.fold_to_end(live)
                except StoreError:
                    return False  # the follower's own task reports it
        return live.state.position > position

    async def join(self, name: str) -> Live:
        """An experiment, recovered from the store if it is new here."""
        if name not in self.live:
            found = Live(State(name))
            async with found.lock:  # a snapshot may fall due meanwhile, and reads the log too
                lost_to = await self._recover(found)
            if found.state.position == 0 and found.quarantine is None:  # any name may be asked for
                return found
            if self.live.setdefault(name, found) is found:
                self._tell(found)
                if lost_to > found.known_to:
                    self.report_loss(found, lost_to)
        return self.live[name]

    async def follow(self, seconds: float, *, discover: bool = True) -> None:
        """Fold new events, once there are some or after `seconds`. discover: also of experiments
        that are new to this process, and of those whose quarantine may have been lifted."""
        served = [live.state for live in self.live.values() if live.quarantine is None]
        positions = {state.name: state.position for state in served}
        await self._store.wait(positions, seconds)
        if discover:
            for name in await self._store.experiments():
                await self.join(name)
            for name in self.quarantined:
                await self.lift(name)
        await self.fold_all_to_end()

    async def fold_all_to_end(self) -> None:
        """Fold every log up to its end. An experiment whose lock is held does not delay the others:
        it is folded in the background once the lock is free."""
        for live in list(self.live.values()):
            if not live.lock.locked():
                await self._fold_in_turn(live)
            elif live.state.name not in self._delayed:
                self._delayed.add(live.state.name)
                self._background.spawn(self._fold_in_turn(live))

    async def _fold_in_turn(self, live: Live) -> None:
        try:
            async with live.lock:
                await self.fold_to_end(live)
        finally:
            self._delayed.discard(live.state.name)

    async def _recover(self, live: Live) -> int:
        """Fold snapshot and tail; the caller holds the lock. Return the position of the newest
        snapshot that the log does not hold; 0: it holds all."""
        live.quarantine, live.recovered = None, False
        live.skips = await skipped_positions(self._store, live.state.name)
        live.go_on_from(State(live.state.name))
        lost_to = await self._restore_newest(live)
        live.snapshot_position = live.state.position
        await self.fold_to_end(live)
        live.row = (await self._store.describe(live.state.name)).row
        live.recovered = True
        return lost_to

    async def lift(self, name: str) -> bool:
        """Fold a quarantined experiment anew if the event at fault was skipped; whether it is
        served."""
        live = self.live[name]
        async with live.lock:
            stopped = live.quarantine
            if stopped and stopped.position in await skipped_positions(self._store, name):
                await self._recover(live)
                self._tell(live)
        return live.quarantine is None

    async def moved(self) -> list[Live]:
        """Wait until something is folded, recovered or lost; the experiments since the last
        call."""
        await self._move.wait()
        self._move.clear()
        names, self._moved = self._moved, set()
        return [self.live[name] for name in names if name in self.live]

    def _tell(self, live: Live) -> None:
        self._moved.add(live.state.name)
        self._move.set()

    async def _restore_newest(self, live: Live) -> int:
        """Replace an older state by the newest whole snapshot that the log continues. A damaged one
        is logged and passed over. Return the position of the newest that the log does not hold; 0:
        it holds all."""
        name, lost_to = live.state.name, 0
        for snapshot in await self._store.snapshots(name):
            if snapshot.position <= live.state.position:
                break
            try:
                state = State.restore(snapshot)
            except Damaged as fault:
                self._telemetry.damaged.inc()
                logger.error(
                    "experiment %s: the snapshot at position %d is damaged (%s): "
                    "an older one or the whole log is used",
                    name,
                    snapshot.position,
                    fault,
                )
                continue
            if any(one <= state.position and one not in state.skips for one in live.skips):
                continue  # it holds what has been skipped since
            if await self._holds_last(Live(state)):
                live.go_on_from(state)
                live.snapshot_position = snapshot.position
                break
            logger.error(
                "experiment %s: the snapshot at position %d is passed over: the log does not hold "
                "its last event",
                name,
                snapshot.position,
            )
            lost_to = max(lost_to, snapshot.position)
        return lost_to

    async def fold_to_end(self, live: Live) -> None:
        """Fold the log up to its end or an event that cannot be folded; the caller holds the lock.

        Where the log no longer holds the last folded event, the state is folded anew: a Redis host
        may come back without its last writes, and give their numbers again. Raises LogLost where
        such a log is empty, LogGap where the log begins later, or with what was erased, and no
        snapshot does.
        """
        while live.quarantine is None:
            began = asyncio.get_running_loop().time()
            try:
                await self._fold_pages(live)
                live.caught_up_at = began
                return
            except LogLost as fault:
                await self.recover_lost(live, fault)
            except FoldedBeforeSkipped as fault:
                logger.warning("%s: the log is folded anew", fault)
                await self._recover(live)
                self._tell(live)
            except (LogGap, FoldFailed) as fault:
                before = live.state.position
                await self._restore_newest(live)
                if live.state.position > before:
                    logger.warning("%s; the snapshot at %d is taken", fault, live.state.position)
                elif isinstance(fault, FoldFailed):
                    self.quarantine(live, fault)
                else:
                    raise

    def quarantine(self, live: Live, fault: FoldFailed) -> None:
        """Quarantine an experiment; nothing else is touched."""
        live.quarantine = Quarantined(live.state.name, fault.position, fault.reason)
        logger.error("%s", live.quarantine, exc_info=fault.__cause__)

    async def _fold_pages(self, live: Live) -> None:
        anchored, pace = live.digest != "", Pace()
        after = live.state.position - anchored
        async for page in pages(self._store, live.state.name, after):
            if anchored:
                await self._expect_anchor(live, take_anchor(page, live.state.position))
                anchored = False
            for record in page:
                event = _read(record, live.skips)
                await self.fold(live, record.position, event, record.payload)
                await pace.keep()
        if anchored:
            await self._expect_anchor(live, None)

    async def _expect_anchor(self, live: Live, record: Record | None) -> None:
        """record: what the log holds in place of the last folded event. Raises LogLost."""
        if not await self._holds_last(live, record):
            raise LogLost(
                f"experiment {live.state.name}: the log does not hold the event at position "
                f"{live.state.position} that is folded"
            )

    async def _holds_last(self, live: Live, record: Record | None = None) -> bool:
        """Whether the last folded event is in the log as it was folded, or erased since, or
        trimmed."""
        name, position = live.state.name, live.state.position
        record = record or await record_at(self._store, name, position)
        if record is None:
            return (await self._store.describe(name)).position >= position
        return live.holds_last(record.payload) or isinstance(_read(record, frozenset()), Tombstone)

    # -- a log that has lost events ------------------------------------------------------------

    async def recover_lost(self, live: Live, fault: LogLost) -> None:
        """Go on with what the log holds; the caller holds the lock. Raises LogLost where it was
        emptied, also if processes have appended to it since, or defined the experiment anew: then
        its operator has to say whether a backup is to be restored."""
        name, position, row = live.state.name, live.state.position, live.row
        found, live.recovered = Live(State(name), lock=live.lock), False
        try:
            lost_to = max(position, await self._recover(found))
        finally:
            live.recovered = True
        begun = live.state.first_at, found.state.first_at
        if live.state.revision and begun[0] != begun[1] and found.quarantine is None:
            raise LogLost(
                f"experiment {name}: the log was emptied, and {position} events of it were folded: "
                "restore a backup, or start this process again to begin anew"
            )
        logger.error("%s: the state was folded anew", fault)
        live.take(found)
        self.report_loss(live, lost_to, max(0, row - found.row))

    def report_loss(self, live: Live, last: int, rows: int = 0) -> None:
        """Tell that the log has lost the events up to `last`, or decision rows."""
        live.losses += 1
        live.lost_to = max(live.lost_to, last)
        lost = [f"events up to position {last} or beyond"] * bool(last)
        lost += [f"{rows} decision rows or more"] * bool(rows)
        logger.error(
            "experiment %s: the log has lost %s; it holds %d events",
            live.state.name,
            " and ".join(lost),
            live.state.position,
        )
        held = live.state.position
        live.unlogged.append(LogTruncated(at=0.0, held=held, last=last, rows=rows))
        self._tell(live)

    async def expect(self, live: Live, position: int) -> None:
        """Report a loss if the log, which once had this position, ends before it."""
        async with live.lock:
            if position > live.known_to:
                await self.fold_to_end(live)  # another process may be ahead
            if position > live.known_to:
                self.report_loss(live, position)

    async def fold(
        self, live: Live, position: int, event: AnyEvent, payload: bytes | None = None
    ) -> None:
        """Apply one event; the caller holds the lock. Raises FoldFailed: the state may then hold a
        part of it.

        payload   as the log has it; left out by readers, which fold each event once
        """
        state, artifact = live.state, None
        if live.recovered and isinstance(event, Learned):
            self._telemetry.drift.learned(state, event)
        try:
            if isinstance(event, VersionStaged):
                artifact = await self.versions.artifact(state.name, event.artifact)
            elif isinstance(event, VersionActivated):
                learner = state.learners.get(event.policy)
                if learner and learner.staged:
                    await self.versions.catch_up(live, learner)
            state.apply(position, event, artifact)
        except (StoreUnavailable, LogGap, UnknownSchema, FoldedBeforeSkipped):
            raise
        except Exception as fault:
            raise FoldFailed(position, fault) from fault
        live.digest = "" if payload is None else digest(payload)
        self._tell(live)


def _read(record: Record, skips: frozenset[int]) -> AnyEvent:
    """Raises FoldFailed, or UnknownSchema."""
    try:
        return read_event(record, skips)
    except Damaged as fault:
        raise FoldFailed(record.position, fault) from fault


def _served(live: Live) -> State:
    """Raises as `Follower.state`."""
    if (stopped := live.quarantine) is not None:
        raise Quarantined(stopped.experiment, stopped.position, stopped.reason)
    if not live.recovered:
        raise StoreUnavailable(f"experiment {live.state.name} is being folded anew")
    return live.state
