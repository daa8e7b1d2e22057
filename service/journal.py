"""The log and the states folded from it: what is durable, and what follows from it, in log order.

On a shared store the log also grows by other processes' hand, so it is tailed as well. What is
written here and what others wrote fold under one lock an experiment.
"""

import asyncio
import logging
from time import time

from service.errors import StoreError, StoreUnavailable
from service.events import (
    AnyEvent,
    ChangeDetected,
    Learned,
    VersionActivated,
    VersionStaged,
    encode_event,
)
from service.fold import State, changes_due
from service.follower import Live
from service.policies.learner import Learner
from service.settings import Settings
from service.stores import Store
from service.stores.base import Append, Appended
from service.telemetry import Telemetry
from service.writer import RETRY_SECONDS, Writer

logger = logging.getLogger(__name__)


class Journal(Writer):
    """What a service does with a log besides writing it: it opens, follows and closes it, and sees
    to the changes of the world, versions and snapshots that follow from it."""

    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(store, settings, telemetry)
        self._writer: asyncio.Task[None] | None = None
        self._snapshotting: set[str] = set()

    async def open(self) -> None:
        """Recover every experiment. Raises StoreError where the log cannot be read or trusted."""
        await self.store.open()
        for name in await self.store.experiments():
            await self.discover(name)
        self._writer = asyncio.create_task(self._write())
        if self.store.shared:
            self.spawn(self._tail())

    async def discover(self, name: str) -> State:
        known = name in self.live
        state = await super().discover(name)
        live = self.live.get(name)
        if live and not known:
            for learner in state.learners.values():
                if learner.staged:
                    self.spawn(self._bring_up(live, learner))
            self._watch(live)
        return state

    async def close(self) -> None:
        """Write what waits, snapshot what changed, let go of the store."""
        self._closing = True
        if self._writer:
            self._wake.set()
            await self._writer
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._buffer:
                rows = self._buffer.oldest(len(self._buffer))
                await self.store.commit(rows)
                for row in rows:
                    self._buffer.drop(row)
            for live in self.live.values():
                await self._snapshot(live)
        except StoreError as fault:
            logger.error("closing without a last snapshot: %s", fault)
        if self._buffer:
            logger.error("%d decisions that were answered are lost to the log", len(self._buffer))
        await self.store.close()

    # -- fold ----------------------------------------------------------------------------------

    async def fold(self, live: Live, position: int, event: AnyEvent) -> None:
        await super().fold(live, position, event)
        state = live.state
        staged = isinstance(event, VersionStaged) and state.learners.get(event.policy)
        if staged and live.recovered:
            self.spawn(self._bring_up(live, staged))
        if isinstance(event, Learned) and live.recovered:
            self._watch(live)
        due = live.snapshot_position + self._settings.snapshot_every_events
        if position >= due and not state.staging and state.name not in self._snapshotting:
            self._snapshotting.add(state.name)
            self.spawn(self._snapshot(live))

    async def _tail(self) -> None:
        """Follow a log that other processes append to."""
        while True:
            try:
                await self.follow(seconds=0.5)
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
        """Catch a staged version up with the log, then say that it serves from here."""
        while staged := learner.staged:
            number = staged.version.number
            mark = f"activated/{learner.name}/{learner.born}/{number}"
            try:
                await self.catch_up(live, learner)
                event = VersionActivated(
                    at=time(), policy=learner.name, born=learner.born, version=number
                )
                await self.append(Append(live.state.name, encode_event(event), {mark: ""}), event)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return  # by us, or by another process: then it comes through the log

    # -- snapshots -----------------------------------------------------------------------------

    async def _snapshot(self, live: Live) -> None:
        try:
            async with live.lock:
                if live.state.position == live.snapshot_position:
                    return
                await self.read_up(live)  # raises where the state is ahead of its log
                if live.state.staging:
                    return
                snapshot = live.state.snapshot()
            await self.store.save_snapshot(live.state.name, snapshot)
            live.snapshot_position = snapshot.position
            self.telemetry.snapshots[live.state.name] = time()
        finally:
            self._snapshotting.discard(live.state.name)
