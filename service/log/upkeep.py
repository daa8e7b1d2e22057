"""What follows a fold: snapshots, versions that start to serve, changes of the world, losses."""

import asyncio
import logging
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakSet

from msgspec import structs

from service.bandits.candidates import LARGE
from service.errors import LogGap, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.clock import LogClock
from service.log.committer import RETRY_SECONDS, Committer
from service.log.presence import Presence
from service.log.replica import Replica
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Snapshot
from service.settings import Settings
from service.state.events import ChangeDetected, LogTruncated, VersionActivated, encode_event
from service.state.fold import State, changes_due
from service.state.learner import Learner, Staged
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)


class Snapshots:
    """Saves a snapshot once enough events were folded."""

    def __init__(
        self,
        store: Store,
        background: Background,
        settings: Settings,
        telemetry: Telemetry,
    ) -> None:
        self._store, self._background = store, background
        self._every, self._telemetry = settings.snapshot_every_events, telemetry
        self._under_way: set[str] = set()

    def interval_events(self, state: State) -> int:
        """Events between two snapshots. Each writes all arms: for a large catalogue at least half
        as many events as it has arms."""
        arms = len(state.arms)
        return self._every if arms <= LARGE else max(self._every, arms // 2)

    def is_due(self, replica: Replica) -> bool:
        state = replica.state
        due = replica.snapshot_position + self.interval_events(state)
        return state.position >= due and not state.staging

    def save_due(self, replica: Replica) -> None:
        """Start to save a snapshot if one is due."""
        if self.is_due(replica) and replica.name not in self._under_way:
            self._under_way.add(replica.name)
            self._background.spawn(self.save(replica))

    async def save_folded(self, replica: Replica) -> None:
        """Save what a recovery has folded so far, unless a version is staged; the caller holds the
        lock. A snapshot that no store can hold is logged. Raises StoreError."""
        if replica.state.staging:
            return
        make = replica.state.capture(replica.digest)
        try:
            await self._write(replica, await asyncio.to_thread(make))
        except StoreError:
            raise
        except Exception:
            logger.exception("experiment %s: recovering without a snapshot", replica.name)

    async def save(self, replica: Replica) -> None:
        """Save a snapshot, but not while a version is staged, nor of a quarantined experiment."""
        try:
            async with replica.lock:
                if replica.state.position == replica.snapshot_position:
                    return
                await replica.fold_to_end()  # the state may be ahead of its log
                if replica.state.staging or replica.quarantine is not None:
                    return
                make = replica.state.capture(replica.digest)
            await self._write(replica, await asyncio.to_thread(make))
        finally:
            self._under_way.discard(replica.name)

    async def save_last(self, replica: Replica) -> None:
        """Save before closing. A snapshot that no store can hold is logged: the next start folds
        the log instead."""
        try:
            await self.save(replica)
        except StoreError:
            raise
        except Exception:
            logger.exception("experiment %s: closing without a last snapshot", replica.name)

    async def save_origin(self, replica: Replica) -> int | None:
        """Let a replay begin where the log ends now; the position. None: not while a version is
        staged. Raises StoreUnavailable."""
        async with replica.lock:
            await replica.fold_to_end()
            replica.served()  # raises where it is quarantined
            if replica.state.staging:
                return None
            make = replica.state.capture(replica.digest)
        snapshot = replace(await asyncio.to_thread(make), origin=True)
        await self._write(replica, snapshot)
        return snapshot.position

    async def _write(self, replica: Replica, snapshot: Snapshot) -> None:
        await self._store.put(replica.name, snapshot)
        # An older one may have taken longer to be written.
        replica.snapshot_position = max(replica.snapshot_position, snapshot.position)
        self._telemetry.snapshots[replica.name] = self._telemetry.clock.time()


class _Defined(NamedTuple):
    revision: int
    deleted: bool
    first_schema: int


class Upkeep:
    """Acts on what the state and the log show after folds, in a task of its own.

    It saves snapshots, lets staged versions serve, logs changes of the world and losses, each once,
    and forgets the metric series of policies that are gone.
    """

    def __init__(
        self,
        replicas: Replicas,
        committer: Committer,
        presence: Presence,
        snapshots: Snapshots,
        background: Background,
        telemetry: Telemetry,
        clock: LogClock,
    ) -> None:
        self._replicas, self._committer, self._presence = replicas, committer, presence
        self._snapshots, self._background = snapshots, background
        self._telemetry, self._clock = telemetry, clock
        self._staged = WeakSet[Staged]()
        self._logged: set[tuple[str, str]] = set()
        self._defined: dict[str, _Defined] = {}

    async def run(self) -> None:
        """Look after each experiment in which something has moved, for ever."""
        while True:
            for replica in await self._replicas.changed():
                try:
                    self.act_on(replica)
                except Exception:  # the other experiments, and its next fold, are looked after
                    logger.exception("experiment %s is not looked after", replica.name)

    def act_on(self, replica: Replica) -> None:
        """Start what the state of an experiment asks for."""
        while replica.unlogged:
            loss = replica.unlogged.pop(0)
            number = replica.losses - len(replica.unlogged)
            self._start(replica, f"truncated/{self._presence.name}/{number}", loss)
        state = replica.state
        defined = _Defined(state.revision, state.deleted, state.first_schema)
        if (before := self._defined.get(replica.name)) != defined:
            self._defined[replica.name] = defined
            served = dict(self._replicas.policies)
            if before and not before.deleted and before.first_schema != defined.first_schema:
                served.pop(replica.name, None)  # it was deleted and defined again since
            self._telemetry.forget_others(served)
        if replica.quarantine is not None or not replica.recovered:
            return
        self._snapshots.save_due(replica)
        for learner in replica.state.learners.values():
            if learner.staged and learner.staged not in self._staged:
                self._staged.add(learner.staged)
                self._background.spawn(self._activate(replica, learner))
        for event in changes_due(replica.state, self._clock.now(replica.state)):
            self._start(replica, f"change/{event.policy}/{event.born}/{event.number}", event)

    def _start(self, replica: Replica, mark: str, event: ChangeDetected | LogTruncated) -> None:
        if (replica.name, mark) not in self._logged:
            self._logged.add((replica.name, mark))
            self._background.spawn(self._log(replica, mark, event))

    async def _log(self, replica: Replica, mark: str, event: ChangeDetected | LogTruncated) -> None:
        """Append an event under its mark, however long the log is gone."""
        while True:
            event = structs.replace(event, at=self._clock.now(replica.state))
            entry = Append(replica.name, encode_event(event), {mark: ""})
            try:
                outcome = await self._committer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if isinstance(outcome, Appended) and isinstance(event, ChangeDetected):
                logger.warning(
                    "experiment %s: %s met a change of the world in %s, from position %d on",
                    replica.name,
                    event.policy,
                    event.stratum,
                    event.since,
                )
            return

    async def _activate(self, replica: Replica, learner: Learner) -> None:
        """Let a staged version serve once it has caught up in every process."""
        while staged := learner.staged:
            number = staged.version.number
            mark = f"activated/{learner.name}/{learner.born}/{number}"
            try:
                await replica.bring_up(learner)
                if not await self._presence.all_ready_for(f"{replica.name}/{mark}"):
                    logger.warning("%s serves before every process has caught it up", mark)
                if learner.staged is not staged:
                    continue
                event = VersionActivated(
                    at=self._clock.now(replica.state),
                    policy=learner.name,
                    born=learner.born,
                    version=number,
                )
                entry = Append(replica.name, encode_event(event), {mark: ""})
                await self._committer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except LogGap as fault:  # others went on meanwhile: their snapshot has the version
                logger.warning("%s was not caught up: %s", mark, fault)
                return
            else:
                return  # by us, or by another process: then it comes through the log
