"""Publisher: tells deciders what decisions depend on, from the learner that leads."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from service.clock import SYSTEM, Clock
from service.errors import StoreUnavailable
from service.log.committer import RETRY_SECONDS
from service.log.presence import Presence
from service.log.replica import Replica
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.stores.base import Published
from service.state.publication import Parts, Publishing, Stamp

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.05
"""Least time between two publications."""

BUSY_SHARE = 0.05
"""Most of a learner's time that publications take."""

SENT_PER_SECOND = 500e6
"""Bytes that a learner sends in a second of its time."""

AGAIN_SECONDS = 0.5
"""Time after which a stamp is written anew though nothing has moved: by it deciders know that they
have missed nothing."""


class _Edition:
    """What this process has published of one experiment. stamp: the last one."""

    def __init__(self) -> None:
        self.publishing, self.stamp, self.number = Publishing(), "", 0


class Publisher:
    """Publishes every experiment while this process leads and a decider is alive.

    Two learners that both believe they lead publish the same of the same position. Their parts may
    not continue each other: a learner that finds another's stamp begins with an image again.
    """

    def __init__(
        self, store: Store, replicas: Replicas, presence: Presence, clock: Clock = SYSTEM
    ) -> None:
        self._store, self._replicas, self._presence = store, replicas, presence
        self._clock = clock
        self._editions: dict[str, _Edition] = {}
        self._spent = 0.0

    async def run(self) -> None:
        """Publish what has moved, for ever."""
        changes, looked_at = self._replicas.changes.beside(), 0.0
        loop = asyncio.get_running_loop()
        while True:
            names = set[str]()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(looked_at + AGAIN_SECONDS - loop.time(), 0.0)):
                    names = await changes.take()
            if not (self._presence.leads and self._presence.has_deciders):
                self._editions.clear()
                await asyncio.sleep(PUBLISH_SECONDS)
                continue
            began = loop.time()
            again, self._spent = began >= looked_at + AGAIN_SECONDS, 0.0
            try:
                if again:
                    looked_at = began
                    await self.look()
                await self.publish(self._replicas.by_name if again else names)
            except StoreUnavailable:
                self._editions.clear()  # what of them is kept is not known
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                logger.exception("deciders are told nothing new")
                self._editions.clear()
                await asyncio.sleep(AGAIN_SECONDS)
            # Folds of what others append are as far apart: each is published at once.
            pause = began + PUBLISH_SECONDS - loop.time()
            await asyncio.sleep(max(pause, self._spent / BUSY_SHARE))

    async def look(self) -> None:
        """Begin anew where the last publication is not this process's. Raises StoreUnavailable."""
        stamps = await self._store.stamps()
        for name, edition in self._editions.items():
            if stamps.get(name) != edition.stamp:
                edition.publishing.begin_anew()

    async def publish(self, names: Iterable[str]) -> None:
        """Publish what has moved of these experiments, and their stamps. Raises
        StoreUnavailable."""
        for name in list(names):
            replica = self._replicas.by_name.get(name)
            if replica is not None and (replica.recovered or replica.quarantine is not None):
                await self._publish(replica)

    async def _publish(self, replica: Replica) -> None:
        edition = self._editions.setdefault(replica.name, _Edition())
        own, parts = edition.publishing, Parts()
        if replica.quarantine is not None:
            own.begin_anew()
            own.image = own.heads = own.position = 0
        else:
            start = self._clock.cpu()
            make = own.next(replica.state)
            self._spent += self._clock.cpu() - start
            if make is not None and own.position == own.image:
                parts = await asyncio.to_thread(self._made, make)
            elif make is not None:
                parts = self._made(make)
        edition.number += 1
        self._spent += sum(map(len, parts.values())) / SENT_PER_SECOND
        lag = max(asyncio.get_running_loop().time() - replica.caught_up_at, 0.0)
        stamp = Stamp(self._presence.name, edition.number, own.image, own.heads, own.position, lag)
        await self._store.put(replica.name, Published(str(stamp), parts))
        edition.stamp = str(stamp)

    def _made(self, make: Callable[[], Parts]) -> Parts:
        """Make parts, in any thread."""
        start = self._clock.cpu()
        parts = make()
        self._spent += self._clock.cpu() - start
        return parts
