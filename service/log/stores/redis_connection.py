"""The connections to Redis: one round trip for each call, with the errors of `service.errors`."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.errors import StoreUnavailable
from service.log.stores.redis_scripts import Command
from service.log.stores.redis_url import client_of, name_of
from service.log.stores.store import RECONNECT_S

REDIS_CONNECTIONS = 16  # one commits and the others read; more would only queue inside Redis
WAITERS = 4
WAIT_MS = 1_000  # for replicas of Redis: below `Patience.reply_s`
KEYS_PER_SCAN = 1_000  # keys of one SCAN: a fraction of a millisecond

Reply = Any
"""Reply of Redis, whose commands have no types."""


@dataclass(frozen=True, slots=True)
class RedisTimeouts:
    """Seconds that the store waits for Redis.

    connect_s   a live host in the same region answers in milliseconds
    reply_s     above the fsync stalls of a busy disk, below the patience of a caller
    block_s     of one XREAD; its socket waits `reply_s` longer, or it would cut it short
    """

    connect_s: float = 0.5
    reply_s: float = 2.0
    block_s: float = 5.0


class RedisConnection:
    """Connections to Redis.

    replicas   of Redis that must hold a commit before it counts as durable
    """

    def __init__(self, url: str, replicas: int, patience: RedisTimeouts) -> None:
        self.replicas, self._patience = replicas, patience
        self._client = client_of(url, REDIS_CONNECTIONS, patience.connect_s, patience.reply_s)
        waits_s = patience.block_s + patience.reply_s
        self._waiter = client_of(url, WAITERS, patience.connect_s, waits_s)
        self._connected_at = -math.inf
        self.name = name_of(url)

    async def close(self) -> None:
        await self._client.aclose()
        await self._waiter.aclose()

    async def do(self, *command: Reply) -> Reply:
        async with self._our_errors():
            return await self._client.execute_command(*command)

    async def all(self, commands: Sequence[Command], *, transaction: bool = False) -> list[Reply]:
        """Send commands in order, in one round trip. If Redis refuses one, all count as failed."""
        pipeline = self._client.pipeline(transaction=transaction)
        for command in commands:
            pipeline.execute_command(*command)
        async with self._our_errors():
            # not raise_on_error: its message repeats the command, payload included
            replies: list[Reply] = await pipeline.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    async def keep(self, commands: Sequence[Command]) -> list[Reply]:
        """Write, and wait until enough replicas of Redis hold the writes."""
        if not self.replicas:
            return await self.all(commands)
        *replies, held = await self.all([*commands, ("WAIT", self.replicas, WAIT_MS)])
        if held < self.replicas:
            await self._disconnect_idle()
            raise StoreUnavailable(
                f"{self.name}: {held} of {self.replicas} replicas of Redis hold the last commit"
            )
        return replies

    async def information(self, *command: str) -> Mapping[str, Reply]:
        """Return the reply to an administrator's command; nothing where hosted Redis refuses it."""
        async with self._our_errors():
            try:
                found: Mapping[str, Reply] = await self._client.execute_command(*command)
            except ResponseError:
                return {}
        return found

    async def wait(self, streams: Mapping[str, int], seconds: float) -> bool:
        """Wait for a stream to pass its number, and return whether one has."""
        block_ms = math.ceil(1000 * min(seconds, self._patience.block_s))
        after = [f"0-{number}" for number in streams.values()]
        async with self._our_errors():
            found = await self._waiter.execute_command(
                "XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *streams, *after
            )
        return bool(found)

    async def keys(self, prefix: str) -> AsyncIterator[list[str]]:
        """Yield pages of the keys that begin with a prefix. A key that exists throughout comes at
        least once."""
        pattern, cursor = pattern_of(prefix), None
        while cursor != 0:
            cursor, keys = await self.do(
                "SCAN", cursor or 0, "MATCH", pattern, "COUNT", KEYS_PER_SCAN
            )
            cursor = int(cursor)
            yield [key.decode() for key in keys]

    @asynccontextmanager
    async def _our_errors(self) -> AsyncIterator[None]:
        """Raise StoreUnavailable for every fault: down, slow, out of memory, read-only, loading.

        The next call connects again, since the address may lead to another server by then.
        """
        if self._connected_at + RECONNECT_S < asyncio.get_running_loop().time():
            await self._disconnect_idle()
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
            await self._disconnect_idle()
            raise StoreUnavailable(f"{self.name}: {error}") from error
        except RuntimeError as error:
            if "handler is closed" not in str(error):  # uvloop: it was lost before the write
                raise
            raise StoreUnavailable(f"{self.name}: the connection was lost") from error

    async def _disconnect_idle(self) -> None:
        self._connected_at = asyncio.get_running_loop().time()
        for client in (self._client, self._waiter):
            with suppress(RedisError, OSError):  # a connection that is broken already
                await client.connection_pool.disconnect(inuse_connections=False)


def pattern_of(prefix: str) -> str:
    """Return the pattern of the keys that begin with a prefix."""
    return re.sub(r"([][*?\\^])", r"\\\1", prefix) + "*"
