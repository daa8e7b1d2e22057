"""Hooks that run after an event is applied: snapshots, active versions, changes of the world."""

import asyncio
import logging
from dataclasses import replace

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
from service.state.events import (
    AnyEvent,
    ChangeDetected,
    Learned,
    VersionActivated,
    VersionStaged,
    encode_event,
)
from service.state.fold import State, changes_due
from service.state.learner import Learner

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

    def folded(self, live: Live, event: AnyEvent) -> None:
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


class Versions:
    """Catches staged versions up with the log, and activates them once every process has."""

    def __init__(
        self,
        follower: Follower,
        writer: Writer,
        presence: Presence,
        background: Background,
        clock: LogClock,
    ) -> None:
        self._follower, self._writer = follower, writer
        self._presence, self._background, self._clock = presence, background, clock

    def recovered(self, live: Live) -> None:
        for learner in live.state.learners.values():
            if learner.staged:
                self._background.spawn(self._activate(live, learner))

    def folded(self, live: Live, event: AnyEvent) -> None:
        if isinstance(event, VersionStaged) and live.recovered:
            learner = live.state.learners.get(event.policy)
            if learner and learner.staged:
                self._background.spawn(self._activate(live, learner))

    async def _activate(self, live: Live, learner: Learner) -> None:
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


class Changes:
    """Logs changes of the world that the fold has detected, each once; measures drift."""

    def __init__(
        self, writer: Writer, background: Background, telemetry: Telemetry, clock: LogClock
    ) -> None:
        self._writer, self._background = writer, background
        self._drift, self._clock = telemetry.drift, clock
        self._seen: set[tuple[str, str]] = set()

    def recovered(self, live: Live) -> None:
        for event in changes_due(live.state, self._clock.now(live.state)):
            mark = f"change/{event.policy}/{event.born}/{event.number}"
            if (live.state.name, mark) not in self._seen:
                self._seen.add((live.state.name, mark))
                self._background.spawn(self._log(live, event, mark))

    def folding(self, live: Live, event: AnyEvent) -> None:
        if isinstance(event, Learned) and live.recovered:
            self._drift.learned(live.state, event)

    def folded(self, live: Live, event: AnyEvent) -> None:
        if isinstance(event, Learned) and live.recovered:
            self.recovered(live)

    async def _log(self, live: Live, event: ChangeDetected, mark: str) -> None:
        while True:
            entry = Append(live.state.name, encode_event(event), {mark: ""})
            try:
                outcome = await self._writer.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                # A clock that the store refused may have been set right meanwhile.
                event = structs.replace(event, at=self._clock.now(live.state))
                continue
            if isinstance(outcome, Appended):  # else another process was first
                logger.warning(
                    "experiment %s: %s met a change of the world in %s, from position %d on",
                    live.state.name,
                    event.policy,
                    event.stratum,
                    event.since,
                )
            return
