"""The shared store: Redis 7 streams, any number of service processes.

A commit is one round trip; for each experiment in it Redis runs one script, alone and whole.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from service.clock import SYSTEM, Clock
from service.errors import StoreError, StoreUnavailable
from service.log.stores import redis_commit
from service.log.stores import redis_tables as tables
from service.log.stores.base import (
    CommitResult,
    Entry,
    Erasure,
    Item,
    LogSummary,
    Removal,
    StoreSize,
    Trim,
)
from service.log.stores.redis_connection import RedisConnection, RedisTimeouts
from service.log.stores.redis_fitness import LEAST_REPLICAS, durability, unfit
from service.log.stores.redis_scripts import (
    EXPERIMENTS,
    PRESENT,
    PROCESSES,
    PUBLISHED,
    REDIS_LAYOUT,
    key_of,
    script,
)
from service.log.stores.store import Cursor, Keyed, KeyedValues, Ordered, Page, Store, expect_layout

logger = logging.getLogger(__name__)

REWRITE_TRIES, REWRITE_WAIT_S = 100, 0.1
REDIS_TIMEOUTS = RedisTimeouts()


class RedisStore(Store):
    """Store on Redis. replicas: of Redis that must hold a commit before it counts as durable."""

    shared = True

    def __init__(
        self,
        url: str,
        *,
        replicas: int = 0,
        patience: RedisTimeouts = REDIS_TIMEOUTS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self.durability = durability({})
        self._unfit: str | None = None
        self._redis = RedisConnection(url, replicas, patience)

    @classmethod
    def from_url(cls, url: str, *, replicas: int = 0, clock: Clock = SYSTEM) -> Self:
        return cls(url, replicas=replicas, clock=clock)

    async def open(self) -> None:
        redis = self._redis
        try:
            await redis.do("PING")
            await self.review()
            if self._unfit:
                raise StoreError(self._unfit)
            await redis.do("SET", "forage:layout", REDIS_LAYOUT, "NX")
            layout = int(await redis.do("GET", "forage:layout"))
            expect_layout(redis.name, layout, REDIS_LAYOUT)
        except BaseException:
            await self.close()
            raise

    async def review(self) -> None:
        redis = self._redis
        reason = unfit(await redis.information("INFO"))
        self._unfit = f"{redis.name}: {reason}" if reason else None
        configuration = await redis.information("CONFIG GET", "append*", LEAST_REPLICAS)
        self.durability = durability(configuration, redis.replicas)

    async def close(self) -> None:
        await self._redis.close()

    async def experiments(self) -> list[str]:
        names = sorted(name.decode() for name in await self._redis.do("SMEMBERS", EXPERIMENTS))
        exist = await self._redis.all([("EXISTS", key_of(name, "events")) for name in names])
        return [name for name, exists in zip(names, exist, strict=True) if exists]

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if self._unfit:
            await self.review()
            if self._unfit:
                raise StoreUnavailable(self._unfit)
        if not entries:
            await self._probe()
            return []
        batch: dict[str, list[Entry]] = {}
        for entry in entries:
            batch.setdefault(entry.experiment, []).append(entry)
        # The names first: one without an event is skipped, an event without one would be lost.
        names = ("SADD", EXPERIMENTS, *batch)
        _, *replies = await self._redis.keep(
            [names, *redis_commit.commands(batch, self._clock.time())]
        )
        decided = dict[str, Iterator[CommitResult]]()
        for name, reply in zip(batch, replies, strict=True):
            decided[name], skew = redis_commit.results(batch[name], reply)
            self.expect_clock(self._redis.name, "Redis", skew)
        return [next(decided[entry.experiment]) for entry in entries]

    async def _probe(self) -> None:
        """Check that a commit could write. Raises StoreUnavailable."""
        seconds, micros = await self._redis.do("TIME")
        skew = self._clock.time() - int(seconds) - int(micros) / 1e6
        self.expect_clock(self._redis.name, "Redis", skew)
        await self._redis.keep([("SET", "forage:probe", 1)])  # a write, of what nobody reads

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        streams = {key_of(name, "events"): position for name, position in positions.items()}
        if not positions:
            await asyncio.sleep(seconds)
        while positions and (left := deadline - loop.time()) > 0:
            if await self._redis.wait(streams, left):
                return

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        return await tables.due(self._redis, experiment, now, limit)

    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        return await tables.page(self._redis, experiment, table, after, limit)

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        return await tables.get(self._redis, experiment, table, keys)

    async def stamps(self) -> dict[str, str]:
        found = await self._redis.do("HGETALL", PUBLISHED)
        return {name.decode(): stamp.decode() for name, stamp in found.items()}

    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        return await tables.describe(self._redis, experiment, whole=whole)

    async def measure(self) -> StoreSize:
        memory = await self._redis.information("INFO", "memory")
        names = await self.experiments()
        logs = {name: await tables.measure(self._redis, name) for name in names}
        used = int(memory.get("used_memory", sum(logs.values())))
        return StoreSize(used, int(memory.get("maxmemory", 0)) or None, logs)

    async def put(self, experiment: str, item: Item) -> None:
        await tables.put(self._redis, experiment, item)

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        if isinstance(what, Trim):
            return await tables.trim(self._redis, experiment, what, limit)
        if isinstance(what, Erasure):
            await tables.erase(self._redis, experiment, what)
        else:
            await self._scrub()
        return 0

    async def _scrub(self) -> None:
        """Rewrite the append-only file, in the background. A node of a stream keeps deleted entries
        until all of them are: nodes of one entry keep nothing."""
        redis = self._redis
        nodes = (await redis.information("CONFIG GET", "stream-node-max-entries")).values()
        if list(nodes) != ["1"]:
            logger.warning(
                "%s: bytes of what was erased stay beside what was not; set "
                "stream-node-max-entries 1 in its configuration",
                redis.name,
            )
        if (await redis.information("CONFIG GET", "appendonly")).get("appendonly") != "yes":
            return
        for _ in range(REWRITE_TRIES):  # one that is under way began before the erasure
            persistence = await redis.information("INFO", "persistence")
            if not persistence.get("aof_rewrite_in_progress"):
                await redis.information("BGREWRITEAOF")
                return
            await asyncio.sleep(REWRITE_WAIT_S)
        raise StoreUnavailable(f"{redis.name}: its append-only file is being written anew")

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        reply = await self._redis.do(*script(PRESENT, PROCESSES, process, doing, repr(seconds)))
        texts = [text.decode() for text in reply]
        return dict(zip(texts[::2], texts[1::2], strict=True))
