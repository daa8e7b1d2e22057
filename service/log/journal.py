"""Journal: the log of a service and the states folded from it.

Entries are queued, committed as a group, folded in log order and acknowledged. On a shared store
other processes append too, so the log is also tailed. Recovery folds the tail of the log onto the
newest snapshot.
"""

import asyncio
import logging
from math import inf
from random import Random

from service.errors import Conflict, LogGap, NotFound, StoreError, StoreUnavailable
from service.log.background import Background
from service.log.clock import LogClock
from service.log.commit_gate import CommitGate
from service.log.follower import Follower
from service.log.presence import Presence
from service.log.replay import skip_mark, skipped_positions
from service.log.stores import Store
from service.log.stores.base import Append
from service.log.upkeep import Snapshots, Upkeep
from service.log.writer import RETRY_SECONDS, Writer
from service.naming import quoted
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import (
    Skipped,
    encode_event,
)

logger = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.01
"""Between two reads of a shared log: events of that time are folded together. At a thousand rewards
a second each read would find one or two, and cost ten times their fold."""

DISCOVER_SECONDS = 0.5
"""Between two searches for experiments that other processes have defined."""

REVIEW_SECONDS = 30.0
"""Between two looks at the settings of a shared store."""

BEHIND_SECONDS = 2.0
"""Longest lag of a process that is ready: later its states are not those of the others any more."""


class Journal:
    """Composes follower and writer, which callers use directly, with the parts that act after each
    commit and fold."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        telemetry: Telemetry,
        gate: CommitGate,
        clock: LogClock,
        rng: Random | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._store, self.clock = store, clock
        self.background = background = Background()
        self.presence = Presence(store, rng)
        self.follower = follower = Follower(store, telemetry, background)
        self.writer = writer = Writer(store, follower, background, gate, settings, telemetry)
        self.snapshots = Snapshots(store, follower, background, settings, telemetry)
        self._upkeep = Upkeep(
            follower, writer, self.presence, self.snapshots, background, telemetry, clock
        )

    @property
    def behind(self) -> bool:
        """Events of other processes have not been folded for too long."""
        return (self.lag_seconds or 0.0) > BEHIND_SECONDS

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest event of another process that may not be folded yet; None where no
        other process appends."""
        if not self._store.shared:
            return None
        return max(asyncio.get_running_loop().time() - self.follower.caught_up_at, 0.0)

    @property
    def clock_skew_seconds(self) -> float | None:
        """Seconds ahead of the store's clock; None where it has none."""
        return self._store.clock_skew_seconds

    async def open(self) -> None:
        """Recover every experiment. Raises StoreError where the log cannot be read or trusted."""
        for name in await self._store.experiments():
            await self.follower.join(name)
        self.writer.start()
        await self.presence.beat()
        self.background.spawn(self._upkeep.run())
        if self._store.shared:
            self.background.spawn(self._tail())
            self.background.spawn(self.presence.run())
            self.background.spawn(self._review())

    async def close(self) -> None:
        """Write what waits, and snapshot what changed."""
        await self.writer.close()
        await self.background.close()
        await self.presence.leave()
        try:
            await self.writer.flush()
            for live in self.follower.live.values():
                await self.snapshots.save_last(live)
        except StoreError as fault:
            logger.error("closing without a last snapshot: %s", fault)

    async def expect(self, name: str, position: int) -> None:
        """Report a loss if the log ends before this position, at which a decision was made.

        Raises StoreUnavailable, also where the log was emptied.
        """
        try:
            await self.follower.expect(await self.follower.join(name), position)
        except LogGap as fault:
            self.writer.degrade(fault)
            raise StoreUnavailable(str(fault)) from fault

    async def skip(self, name: str, position: int) -> None:
        """Let every replica pass over the event that an experiment is quarantined for.

        Raises NotFound, Conflict where it is not quarantined for that event, StoreUnavailable.
        """
        live = await self.follower.join(name)
        if live.state.position == 0 and live.quarantine is None:
            raise NotFound(f"there is no experiment {quoted(name)}", path="experiment")
        stopped = live.quarantine
        if stopped is None or stopped.position != position:
            raise Conflict("the experiment is not quarantined for an event at this position")
        mark = skip_mark(len(await skipped_positions(self._store, name)))
        event = Skipped(at=self.clock.now(live.state), position=position, reason=stopped.reason)
        await self.writer.append(Append(name, encode_event(event), {mark: str(position)}), event)
        if not await self.follower.lift(name):
            logger.warning("experiment %s: another event cannot be folded", name)

    async def _review(self) -> None:
        """Watch the settings of a shared store."""
        while True:
            await asyncio.sleep(REVIEW_SECONDS)
            before = self._store.durability
            try:
                await self._store.review()
                await self._store.commit([])
            except Exception as fault:
                self.writer.degrade(fault)
            if self._store.durability == before:
                continue
            self._telemetry.durability_changes.inc()
            now = self._store.durability
            logger.warning("durability settings changed: %s Before: %s", now, before)

    async def _tail(self) -> None:
        """Follow the log. Events that a commit of our own has just read up are not read again."""
        loop, discovered_at = asyncio.get_running_loop(), -inf
        while True:
            try:
                discover = loop.time() >= discovered_at + DISCOVER_SECONDS
                if discover or loop.time() >= self.follower.caught_up_at + TOGETHER_SECONDS:
                    await self.follower.follow(DISCOVER_SECONDS, discover=discover)
                if discover:
                    discovered_at = loop.time()
                await asyncio.sleep(TOGETHER_SECONDS)
            except Exception as fault:
                self.writer.degrade(fault)
                await asyncio.sleep(RETRY_SECONDS)
