"""Log: the parts of one process that write and fold the log of a store."""

import asyncio
import logging
from contextlib import suppress
from math import inf
from random import Random

from service.clock import SYSTEM, Clock
from service.errors import StoreError, UnknownSchema
from service.log.background import Background
from service.log.clock import LogClock
from service.log.committer import RETRY_SECONDS, Committer
from service.log.deciding import DecidingReplicas
from service.log.presence import Presence
from service.log.publisher import Publisher
from service.log.recovery import LogWatcher, Recovery
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.upkeep import Snapshots, Upkeep
from service.settings import Settings
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.05
"""Seconds between two reads of a shared log: events of that time are folded together. Without a
pause each read would find one or two events, and cost ten times their fold."""

DISCOVER_SECONDS = 0.5
"""Seconds between two searches for experiments that other processes have defined."""

REVIEW_SECONDS = 30.0
"""Seconds between two looks at the settings of a shared store."""

BEHIND_SECONDS = 2.0
"""Longest lag, in seconds, of a process that is ready: later its states are not those of the others
any more."""


class Log:
    """Opens the parts, keeps their tasks running, and closes them in order.

    folds   this process is a learner; else a decider, which takes what learners publish
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        telemetry: Telemetry,
        clock: Clock = SYSTEM,
        rng: Random | None = None,
    ) -> None:
        self._store, self._telemetry = store, telemetry
        self.clock = LogClock(clock)
        self.background = background = Background()
        self.presence = Presence(store, rng, settings.role)
        self.folds = settings.role == "learner"
        kind = Replicas if self.folds else DecidingReplicas
        self.replicas = kind(store, background)
        self.committer = Committer(store, self.replicas, background, settings, telemetry, clock)
        self.snapshots = Snapshots(store, background, settings, telemetry)
        self.recovery = Recovery(self.snapshots, clock)
        self.replicas.watcher = LogWatcher(self.recovery, telemetry)
        self.upkeep = Upkeep(
            self.replicas,
            self.committer,
            self.presence,
            self.snapshots,
            background,
            telemetry,
            self.clock,
            folds=self.folds,
        )
        self.publisher = Publisher(store, self.replicas, self.presence, clock)
        self._committing: asyncio.Task[None] | None = None

    @property
    def shared(self) -> bool:
        """Whether other processes may write the log, too."""
        return self._store.shared

    @property
    def behind(self) -> bool:
        """Events of other processes have not been folded for too long. A decider goes on: were all
        deciders to stop with the last learner, nobody would decide."""
        return self.folds and (self.lag_seconds or 0.0) > BEHIND_SECONDS

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest event of another process that may not be folded yet; None where no
        other process appends."""
        if not self._store.shared:
            return None
        return max(asyncio.get_running_loop().time() - self.replicas.caught_up_at, 0.0)

    def age_seconds(self, name: str) -> float:
        """Return the age of the oldest event of an experiment that may not be in its state yet."""
        caught_up_at = self.replicas.by_name[name].caught_up_at
        return max(asyncio.get_running_loop().time() - caught_up_at, 0.0)

    @property
    def clock_skew_seconds(self) -> float | None:
        """Seconds ahead of the store's clock; None where it has none."""
        return self._store.clock_skew_seconds

    async def open(self) -> None:
        """Recover every experiment, or wait until each is published. Raises StoreUnavailable, or
        UnknownSchema where another Forage wrote the log; ConfigurationError where the store has no
        place for publications."""
        if isinstance(self.replicas, DecidingReplicas):
            await self._open_decider(self.replicas)
            return
        for name in await self._store.experiments():
            self.recovery.begin(name, (await self._store.describe(name)).position)
            stopped = (await self.replicas.join(name)).quarantine
            if stopped is not None and isinstance(stopped.__cause__, UnknownSchema):
                raise stopped.__cause__
        self.recovery.end()
        self._committing = asyncio.create_task(self.committer.run())
        await self.presence.beat()
        self.background.spawn(self.upkeep.run())
        if self._store.shared:
            self.background.spawn(self._follow())
            self.background.spawn(self.presence.run())
            self.background.spawn(self._review())
            self.background.spawn(self.publisher.run())

    async def _open_decider(self, replicas: DecidingReplicas) -> None:
        await self._store.stamps()
        await self.presence.beat()  # a learner publishes once it knows of a decider
        self.background.spawn(self.presence.run())
        await replicas.follow(0.0)
        while not await replicas.are_published(anew=bool(self.presence.learners)):
            await asyncio.sleep(TOGETHER_SECONDS)
            await replicas.follow(0.0)
        self._committing = asyncio.create_task(self.committer.run())
        self.background.spawn(self.upkeep.run())
        self.background.spawn(self._follow())
        self.background.spawn(self._review())

    async def close(self) -> None:
        """Write what waits, and snapshot what changed."""
        self.committer.close()
        if self._committing is not None:
            await self._committing
        await self.background.close()
        await self.presence.leave()
        try:
            await self.committer.flush()
            for replica in self.replicas.by_name.values() if self.folds else ():
                await self.snapshots.save_last(replica)
        except StoreError as fault:
            logger.error("closing without a last snapshot: %s", fault)

    async def _follow(self) -> None:
        """Fold what other processes append. Events that a commit of our own has just read up are
        not read again."""
        loop, discovered_at, told = asyncio.get_running_loop(), -inf, ""
        while True:
            try:
                discover = loop.time() >= discovered_at + DISCOVER_SECONDS
                if discover or loop.time() >= self.replicas.caught_up_at + TOGETHER_SECONDS:
                    await self.replicas.follow(DISCOVER_SECONDS, discover=discover)
                if discover:
                    discovered_at = loop.time()
                if told:
                    logger.warning("the log can be read again")
                    told = ""
                await asyncio.sleep(TOGETHER_SECONDS)
            except Exception as fault:
                await self.committer.probe()
                if not self.committer.degraded and str(fault) != told:
                    told = str(fault)
                    bug = None if isinstance(fault, StoreError) else fault
                    logger.error("the log cannot be read: %s", fault, exc_info=bug)
                await asyncio.sleep(RETRY_SECONDS)

    async def _review(self) -> None:
        """Watch the settings of a shared store."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            before = self._store.durability
            with suppress(StoreError):  # the probe tells
                await self._store.review()
            await self.committer.probe()
            if self._store.durability == before:
                continue
            self._telemetry.durability_changes.inc()
            now = self._store.durability
            logger.warning("durability settings changed: %s Before: %s", now, before)
