"""The log and the states folded from it: what is durable, and what follows from it, in log order.

On a shared store the log also grows by other processes' hand, so it is tailed as well. What is
written here and what others wrote fold under one lock an experiment.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from math import inf
from time import time

from service.bandits.policies.candidates import LARGE
from service.errors import Conflict, LogGap, NotFound, StoreError, StoreUnavailable
from service.log.follower import Live
from service.log.presence import Presence
from service.log.replay import skip_mark, skipped_positions
from service.log.stores import Store
from service.log.stores.base import Append, Appended, Snapshot
from service.log.writer import RETRY_SECONDS, Writer
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import (
    AnyEvent,
    ChangeDetected,
    Learned,
    Skipped,
    VersionActivated,
    VersionStaged,
    encode_event,
)
from service.state.fold import State, changes_due
from service.state.learner import Learner

logger = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.01
"""Between two looks at a log that others append to: what came meanwhile is folded together. At a
thousand rewards a second each look would find one or two, and cost ten times their fold."""

DISCOVER_SECONDS = 0.5
"""Between two looks for experiments that others have defined."""

BEHIND_SECONDS = 2.0
"""So long may following a log take that others append to; longer, and decisions are made by a state
that is not theirs any more."""


class Journal(Writer):
    """What a service does with a log besides writing it: it opens, follows and closes it, and sees
    to the changes of the world, versions and snapshots that follow from it."""

    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(store, settings, telemetry)
        self._writer: asyncio.Task[None] | None = None
        self._snapshotting: set[str] = set()
        self._followed_at: float | None = None
        self.presence = Presence(store)

    @property
    def behind(self) -> bool:
        """Whether others may have appended what is not folded here for too long."""
        return (self.lag_seconds or 0.0) > BEHIND_SECONDS

    @property
    def lag_seconds(self) -> float | None:
        """Since all was folded that others may have appended; None where nobody else appends."""
        if self._followed_at is None:
            return None
        return asyncio.get_running_loop().time() - self._followed_at

    @property
    def queued(self) -> int:
        """Entries that wait for the writer."""
        return len(self._pending)

    @property
    def buffered(self) -> int:
        """Decisions that were answered and wait in memory for the log."""
        return len(self._buffer)

    async def open(self) -> None:
        """Recover every experiment. Raises StoreError where the log cannot be read or trusted."""
        await self.store.open()
        for name in await self.store.experiments():
            await self.join(name)
        self._writer = asyncio.create_task(self._write())
        await self.presence.beat()
        if self.store.shared:
            self._followed_at = asyncio.get_running_loop().time()
            self.spawn(self._tail())
            self.spawn(self.presence.beat_for_ever())

    async def join(self, name: str) -> Live:
        known = name in self.live
        live = await super().join(name)
        if not known and name in self.live:
            self._resume(live)
        return live

    async def lift(self, name: str) -> bool:
        lifted = await super().lift(name)
        if lifted:
            self._resume(self.live[name])
        return lifted

    def _resume(self, live: Live) -> None:
        """Go on with what a recovered state has begun."""
        for learner in live.state.learners.values():
            if learner.staged:
                self.spawn(self._bring_up(live, learner))
        self._watch(live)

    async def skip(self, name: str, position: int) -> None:
        """Let every replica pass over the event that an experiment is quarantined for.

        Raises NotFound, Conflict where it is not quarantined for that event, StoreUnavailable.
        """
        live = await self.join(name)
        if live.state.position == 0 and live.quarantine is None:
            raise NotFound("there is no experiment of this name", path="experiment")
        stopped = live.quarantine
        if stopped is None or stopped.position != position:
            raise Conflict("the experiment is not quarantined for an event at this position")
        mark = skip_mark(len(await skipped_positions(self.store, name)))
        event = Skipped(at=time(), position=position, reason=stopped.reason)
        await self.append(Append(name, encode_event(event), {mark: str(position)}), event)
        if not await self.lift(name):
            logger.warning("experiment %s: another event cannot be folded", name)

    async def close(self) -> None:
        """Write what waits, snapshot what changed, let go of the store."""
        self._closing = True
        await self.presence.leave()
        if self._writer:
            self._wake.set()
            self.hurry()
            await self._writer
        while self._tasks:  # wait_for (Python 3.11), which redis-py calls, may swallow one cancel
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=RETRY_SECONDS)
        try:
            if self._buffer:
                rows = self._buffer.oldest(len(self._buffer))
                await self.store.commit(rows)
                for row in rows:
                    self._buffer.drop(row)
            for live in self.live.values():
                await self._last_snapshot(live)
        except StoreError as fault:
            logger.error("closing without a last snapshot: %s", fault)
        if self._buffer:
            logger.error("%d decisions that were answered are lost to the log", len(self._buffer))
        await self.store.close()

    async def _last_snapshot(self, live: Live) -> None:
        """A fault of one experiment, as a snapshot that no store can hold, stays its own: its log
        is folded at the next start."""
        try:
            await self.snapshot(live)
        except StoreError:
            raise
        except Exception:
            logger.exception("experiment %s: closing without a last snapshot", live.state.name)

    def forget_unlogged(self, experiment: str, words: Collection[str]) -> list[bytes]:
        """Decisions that wait in memory and hold one of these words: they will not be logged."""
        gone = []
        for row in self._buffer.oldest(len(self._buffer)):
            if row.experiment == experiment and any(one.encode() in row.payload for one in words):
                self._buffer.drop(row)
                gone.append(row.payload)
        return gone

    # -- fold ----------------------------------------------------------------------------------

    async def fold(self, live: Live, position: int, event: AnyEvent) -> None:
        if isinstance(event, Learned) and live.recovered:
            self.telemetry.drift.learned(live.state, event)
        await super().fold(live, position, event)
        state = live.state
        staged = isinstance(event, VersionStaged) and state.learners.get(event.policy)
        if staged and live.recovered:
            self.spawn(self._bring_up(live, staged))
        if isinstance(event, Learned) and live.recovered:
            self._watch(live)
        due = live.snapshot_position + self.snapshot_events(state)
        if position >= due and not state.staging and state.name not in self._snapshotting:
            self._snapshotting.add(state.name)
            self.spawn(self.snapshot(live))

    async def _tail(self) -> None:
        """Follow a log that other processes append to. What commits of our own have just read up is
        not looked for."""
        loop, discovered_at = asyncio.get_running_loop(), -inf
        while True:
            try:
                known = loop.time() < discovered_at + DISCOVER_SECONDS
                served = [live for live in self.live.values() if live.quarantine is None]
                level_at = min((live.level_at for live in served), default=-inf)
                if known and loop.time() < level_at + TOGETHER_SECONDS:
                    self._followed_at = level_at
                else:
                    await self.follow(seconds=DISCOVER_SECONDS, known=known)
                    self._followed_at = loop.time()
                if not known:
                    discovered_at = self._followed_at
                await asyncio.sleep(TOGETHER_SECONDS)
            except Exception as fault:
                self._degrade(fault)
                await asyncio.sleep(RETRY_SECONDS)

    # -- changes -------------------------------------------------------------------------------

    def _watch(self, live: Live) -> None:
        """Log the changes of the world that the fold has noticed, each once."""
        for event in changes_due(live.state, time()):
            mark = f"change/{event.policy}/{event.born}/{event.number}"
            if mark not in live.saying:
                live.saying.add(mark)
                self.spawn(self._say_change(live, event, mark))

    async def _say_change(self, live: Live, event: ChangeDetected, mark: str) -> None:
        """Until the log holds it, by us or by another process."""
        while True:
            try:
                entry = Append(live.state.name, encode_event(event), {mark: ""})
                outcome = await self.append(entry, event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if isinstance(outcome, Appended):
                logger.warning(
                    "experiment %s: %s met a change of the world in %s, from position %d on",
                    live.state.name,
                    event.policy,
                    event.stratum,
                    event.since,
                )
            return

    # -- versions ------------------------------------------------------------------------------

    async def _bring_up(self, live: Live, learner: Learner) -> None:
        """Catch a staged version up with the log; once every process has, say that it serves from
        here."""
        while staged := learner.staged:
            number = staged.version.number
            mark = f"activated/{learner.name}/{learner.born}/{number}"
            try:
                await self.catch_up(live, learner)
                if not await self.presence.all_ready_for(f"{live.state.name}/{mark}"):
                    logger.warning("%s serves before every process has caught it up", mark)
                if learner.staged is not staged:
                    continue
                event = VersionActivated(
                    at=time(), policy=learner.name, born=learner.born, version=number
                )
                await self.append(Append(live.state.name, encode_event(event), {mark: ""}), event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except LogGap as fault:  # others went on meanwhile: their snapshot has the version
                logger.warning("%s was not caught up: %s", mark, fault)
                return
            else:
                return  # by us, or by another process: then it comes through the log

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot_events(self, state: State) -> int:
        """After how many events the next is due: a snapshot writes each arm, so that a large
        catalogue has them as far apart as half of it."""
        every, arms = self._settings.snapshot_every_events, len(state.arms)
        return every if arms <= LARGE else max(every, arms // 2)

    async def snapshot(self, live: Live) -> None:
        try:
            async with live.lock:
                if live.state.position == live.snapshot_position:
                    return
                await self.read_up(live)  # raises where the state is ahead of its log
                if live.state.staging or live.quarantine is not None:
                    return
                make = live.state.capture()
            await self._save(live, await asyncio.to_thread(make))
        finally:
            self._snapshotting.discard(live.state.name)

    async def save_origin(self, live: Live) -> int | None:
        """Let a replay begin where the log ends now; the position. None: not while a version is
        staged. Raises StoreUnavailable."""
        async with live.lock:
            await self.read_up(live)
            self.state(live.state.name)  # raises where it is quarantined
            if live.state.staging:
                return None
            make = live.state.capture()
        snapshot = replace(await asyncio.to_thread(make), origin=True)
        await self._save(live, snapshot)
        return snapshot.position

    async def _save(self, live: Live, snapshot: Snapshot) -> None:
        await self.store.save_snapshot(live.state.name, snapshot)
        # An older one may have taken longer to be written.
        live.snapshot_position = max(live.snapshot_position, snapshot.position)
        self.telemetry.snapshots[live.state.name] = time()
