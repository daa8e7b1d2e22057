"""What follows a fold: snapshots, ends of gates, changes of the world, losses."""

import asyncio
import logging
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from service.bandits.candidates import LARGE
from service.errors import StoreError, StoreUnavailable
from service.log.background import Background
from service.log.clock import LogClock
from service.log.committer import RETRY_SECONDS, Committer
from service.log.presence import Presence
from service.log.replica import Replica
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Snapshot
from service.settings import Settings
from service.state.events import (
    ChangeDetected,
    LogTruncated,
    VersionActivated,
    VersionRejected,
    encode_event,
)
from service.state.fold import State, changes_due, gates_due
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
        due = replica.snapshot_position + self.interval_events(replica.state)
        return replica.state.position >= due

    def save_due(self, replica: Replica) -> None:
        """Start to save a snapshot if one is due."""
        if self.is_due(replica) and replica.name not in self._under_way:
            self._under_way.add(replica.name)
            self._background.spawn(self.save(replica))

    async def save_folded(self, replica: Replica) -> None:
        """Save what a recovery has folded so far; the caller holds the lock. A snapshot that no
        store can hold is logged. Raises StoreError."""
        make = replica.state.capture(replica.digest)
        try:
            await self._write(replica, await asyncio.to_thread(make))
        except StoreError:
            raise
        except Exception:
            logger.exception("experiment %s: recovering without a snapshot", replica.name)

    async def save(self, replica: Replica) -> None:
        """Save a snapshot, but not of a quarantined experiment."""
        try:
            async with replica.lock:
                if replica.state.position == replica.snapshot_position:
                    return
                await replica.fold_to_end()  # the state may be ahead of its log
                if replica.quarantine is not None:
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

    async def save_origin(self, replica: Replica) -> int:
        """Let a replay begin where the log ends now; the position. Raises StoreUnavailable."""
        async with replica.lock:
            await replica.fold_to_end()
            replica.served()  # raises where it is quarantined
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


NotedEvent = ChangeDetected | LogTruncated | VersionActivated | VersionRejected
"""What a state shows, and upkeep logs."""


def gate_mark(policy: str, born: int, version: int) -> str:
    """Name what ends the gate of a version, once. born: as `VersionStaged` has it."""
    return f"gate/{policy}/{born}/{version}"


class Upkeep:
    """Acts on what the state and the log show after folds, in a task of its own.

    It saves snapshots, logs ends of gates, changes of the world and losses, each once, and forgets
    the metric series of policies that are gone.

    folds   this process is a learner; a decider logs losses alone
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
        *,
        folds: bool = True,
    ) -> None:
        self._folds = folds
        self._replicas, self._committer, self._presence = replicas, committer, presence
        self._snapshots, self._background = snapshots, background
        self._telemetry, self._clock = telemetry, clock
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
        if not self._folds or replica.quarantine is not None or not replica.recovered:
            return
        self._snapshots.save_due(replica)
        now = self._clock.now(replica.state)
        for event in changes_due(replica.state, now):
            self._start(replica, f"change/{event.policy}/{event.born}/{event.number}", event)
        for gate in gates_due(replica.state, now):
            if replica.state.rolls_out(replica.state.folded[gate.policy]):
                continue  # `Rollouts` starts that
            self._start(replica, gate_mark(gate.policy, gate.born, gate.version), gate)

    def _start(self, replica: Replica, mark: str, event: NotedEvent) -> None:
        if (replica.name, mark) not in self._logged:
            self._logged.add((replica.name, mark))
            self._background.spawn(self._log(replica, mark, event))

    async def _log(self, replica: Replica, mark: str, event: NotedEvent) -> None:
        """Append an event under its mark, however long the log is gone."""
        while True:
            event = structs.replace(event, at=self._clock.now(replica.state))
            entry = Append(replica.name, encode_event(event), {mark: ""})
            try:
                outcome = await self._committer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if isinstance(outcome, Appended):
                _tell(replica.name, event)
            return


def _tell(experiment: str, event: NotedEvent) -> None:
    """Tell the service's log of an event. A loss was told of when it was noticed."""
    if isinstance(event, ChangeDetected):
        logger.warning(
            "experiment %s: %s met a change of the world in %s, from position %d on",
            experiment,
            event.policy,
            event.stratum,
            event.since,
        )
    elif not isinstance(event, LogTruncated):
        logger.info("experiment %s, policy %s: %s", experiment, event.policy, event.reason)
