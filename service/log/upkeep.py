"""What follows a fold: snapshots, versions that start to serve, changes of the world, losses."""

import asyncio
import logging
from dataclasses import replace
from weakref import WeakSet

from msgspec import structs

from service.bandits.candidates import LARGE
from service.errors import LogGap, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.clock import LogClock
from service.log.follower import Follower
from service.log.live import Live
from service.log.presence import Presence
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Snapshot
from service.log.writer import RETRY_SECONDS, Writer
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import ChangeDetected, LogTruncated, VersionActivated, encode_event
from service.state.fold import State, changes_due
from service.state.learner import Learner, Staged

logger = logging.getLogger(__name__)


class Snapshots:
    """Saves a snapshot once enough events were folded."""

    def __init__(
        self,
        store: Store,
        follower: Follower,
        background: Background,
        settings: Settings,
        telemetry: Telemetry,
    ) -> None:
        self._store, self._follower, self._background = store, follower, background
        self._every, self._telemetry = settings.snapshot_every_events, telemetry
        self._under_way: set[str] = set()

    def interval_events(self, state: State) -> int:
        """Events between two snapshots. Each writes all arms: for a large catalogue at least half
        as many events as it has arms."""
        arms = len(state.arms)
        return self._every if arms <= LARGE else max(self._every, arms // 2)

    def save_due(self, live: Live) -> None:
        """Start to save a snapshot if one is due."""
        state = live.state
        due = live.snapshot_position + self.interval_events(state)
        if state.position >= due and not state.staging and state.name not in self._under_way:
            self._under_way.add(state.name)
            self._background.spawn(self.save(live))

    async def save(self, live: Live) -> None:
        """Not while a version is staged, nor of a quarantined experiment."""
        try:
            async with live.lock:
                if live.state.position == live.snapshot_position:
                    return
                await self._follower.fold_to_end(live)  # raises where the state is ahead of its log
                if live.state.staging or live.quarantine is not None:
                    return
                make = live.state.capture(live.digest)
            await self._write(live, await asyncio.to_thread(make))
        finally:
            self._under_way.discard(live.state.name)

    async def save_last(self, live: Live) -> None:
        """Save before closing. A snapshot that no store can hold is logged: the next start folds
        the log instead."""
        try:
            await self.save(live)
        except StoreError:
            raise
        except Exception:
            logger.exception("experiment %s: closing without a last snapshot", live.state.name)

    async def save_origin(self, live: Live) -> int | None:
        """Let a replay begin where the log ends now; the position. None: not while a version is
        staged. Raises StoreUnavailable."""
        async with live.lock:
            await self._follower.fold_to_end(live)
            self._follower.state(live.state.name)  # raises where it is quarantined
            if live.state.staging:
                return None
            make = live.state.capture(live.digest)
        snapshot = replace(await asyncio.to_thread(make), origin=True)
        await self._write(live, snapshot)
        return snapshot.position

    async def _write(self, live: Live, snapshot: Snapshot) -> None:
        await self._store.save_snapshot(live.state.name, snapshot)
        # An older one may have taken longer to be written.
        live.snapshot_position = max(live.snapshot_position, snapshot.position)
        self._telemetry.snapshots[live.state.name] = self._telemetry.clock.time()


class Upkeep:
    """Acts on what the state and the log show after folds, in a task of its own.

    It saves snapshots, lets staged versions serve, logs changes of the world and losses, each once,
    and forgets the metric series of policies that are gone.
    """

    def __init__(
        self,
        follower: Follower,
        writer: Writer,
        presence: Presence,
        snapshots: Snapshots,
        background: Background,
        telemetry: Telemetry,
        clock: LogClock,
    ) -> None:
        self._follower, self._writer, self._presence = follower, writer, presence
        self._snapshots, self._background = snapshots, background
        self._telemetry, self._clock = telemetry, clock
        self._staged = WeakSet[Staged]()
        self._logged: set[tuple[str, str]] = set()
        self._defined: dict[str, tuple[int, bool]] = {}  # by experiment: revision, deleted

    async def run(self) -> None:
        """Look after each experiment in which something has moved, for ever."""
        while True:
            for live in await self._follower.moved():
                try:
                    self.look_after(live)
                except Exception:  # the other experiments, and its next fold, are looked after
                    logger.exception("experiment %s is not looked after", live.state.name)

    def look_after(self, live: Live) -> None:
        """Start what the state of an experiment asks for."""
        while live.unlogged:
            loss = live.unlogged.pop(0)
            number = live.losses - len(live.unlogged)
            self._start(live, f"truncated/{self._presence.name}/{number}", loss)
        defined = live.state.revision, live.state.deleted
        if self._defined.get(live.state.name) != defined:
            self._defined[live.state.name] = defined
            self._telemetry.forget_others(self._follower.policies)
        if live.quarantine is not None or not live.recovered:
            return
        self._snapshots.save_due(live)
        for learner in live.state.learners.values():
            if learner.staged and learner.staged not in self._staged:
                self._staged.add(learner.staged)
                self._background.spawn(self._activate(live, learner))
        for event in changes_due(live.state, self._clock.now(live.state)):
            self._start(live, f"change/{event.policy}/{event.born}/{event.number}", event)

    def _start(self, live: Live, mark: str, event: ChangeDetected | LogTruncated) -> None:
        if (live.state.name, mark) not in self._logged:
            self._logged.add((live.state.name, mark))
            self._background.spawn(self._log(live, mark, event))

    async def _log(self, live: Live, mark: str, event: ChangeDetected | LogTruncated) -> None:
        """Append an event under its mark, however long the log is gone."""
        while True:
            event = structs.replace(event, at=self._clock.now(live.state))
            entry = Append(live.state.name, encode_event(event), {mark: ""})
            try:
                outcome = await self._writer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if isinstance(outcome, Appended) and isinstance(event, ChangeDetected):
                logger.warning(
                    "experiment %s: %s met a change of the world in %s, from position %d on",
                    live.state.name,
                    event.policy,
                    event.stratum,
                    event.since,
                )
            return

    async def _activate(self, live: Live, learner: Learner) -> None:
        """Let a staged version serve once it has caught up in every process."""
        while staged := learner.staged:
            number = staged.version.number
            mark = f"activated/{learner.name}/{learner.born}/{number}"
            try:
                await self._follower.versions.catch_up(live, learner)
                if not await self._presence.all_ready_for(f"{live.state.name}/{mark}"):
                    logger.warning("%s serves before every process has caught it up", mark)
                if learner.staged is not staged:
                    continue
                event = VersionActivated(
                    at=self._clock.now(live.state),
                    policy=learner.name,
                    born=learner.born,
                    version=number,
                )
                entry = Append(live.state.name, encode_event(event), {mark: ""})
                await self._writer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except LogGap as fault:  # others went on meanwhile: their snapshot has the version
                logger.warning("%s was not caught up: %s", mark, fault)
                return
            else:
                return  # by us, or by another process: then it comes through the log
