"""The shared store: how Redis is set, how full it is, who writes to it, what its clock says."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from service.errors import ConfigurationError
from service.log.stores.redis_fitness import durability, unfit
from service.log.stores.redis_scripts import EXPERIMENTS, LAYOUT, MOST_SKEW_S, PROCESSES, key_of
from service.log.stores.redis_url import client_of
from service.maintenance.doctor.checks import Check, fault, ok, size, warning
from service.maintenance.doctor.sqlite import tail
from service.settings import Settings

TIMEOUT_S = 2.0
SLOW_S = 0.02
SKEW_S = 1.0
FULL = 0.8
SET = "CONFIG SET {}, and the same in redis.conf"


async def examine_redis(settings: Settings) -> list[Check]:
    try:
        client: Redis = client_of(settings.store, 1, TIMEOUT_S, TIMEOUT_S, decode_responses=True)
    except ConfigurationError as error:
        return [fault("store", str(error), "correct FORAGE_STORE")]
    found: list[Check] = []
    async with client:
        try:
            async for check in _examine(client, settings):
                found.append(check)  # noqa: PERF401 - what came before a fault is kept
        except (RedisError, OSError) as error:
            kind = type(error).__name__  # its text may hold the address with the password
            say = f"cannot be reached or does not answer ({kind})"
            found.append(fault("store", say, "start Redis, or correct FORAGE_STORE"))
    return found


async def _examine(client: Redis, settings: Settings) -> AsyncIterator[Check]:
    start = time.perf_counter()
    await client.ping()
    millis = 1000 * (time.perf_counter() - start)
    info: dict[str, Any] = await client.info()
    if reason := unfit(info):
        yield fault("store", reason, "a service would not start on it")
    else:
        yield ok("store", f"Redis {info['redis_version']}, answers in {millis:.1f} ms")
    if millis > 1000 * SLOW_S:
        say = f"an answer took {millis:.0f} ms, and every reward waits for one"
        yield warning("store", say, "put it nearer to the services")
    if info.get("role") != "master":
        yield fault("store", "this is a replica: it takes no writes", "name its primary")
    yield _layout(await client.get("forage:layout"))
    configuration = await _configuration(client)
    yield _durability(configuration)
    if info.get("aof_last_write_status", "ok") != "ok":
        say = "Redis could not write its append-only file"
        yield fault("durability", say, "look at its disk")
    yield _replicas(info, configuration, settings.redis_replicas)
    yield _memory(int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
    for check in _erasure(configuration):
        yield check
    yield await _clock(client)
    seconds, _ = await client.time()
    living = await client.zcount(PROCESSES[0], seconds, "+inf")
    yield ok("services", f"{living or 'none'} live on this log")
    for name in sorted(map(str, await client.smembers(EXPERIMENTS))):
        last = await client.xrevrange(key_of(name, "events"), count=1)
        kept = [int(at) for at in await client.hkeys(key_of(name, "snapshots"))]
        position = int(str(last[0][0]).partition("-")[2]) if last else max(kept, default=0)
        yield tail(name, position, max(kept, default=None), settings)


def _layout(found: bytes | str | None) -> Check:
    if found is None:
        return ok("layout", "empty: the first `forage serve` lays it out")
    layout = int(found)
    if layout != LAYOUT:
        say = f"layout {layout}, and this Forage reads layout {LAYOUT}"
        return fault("layout", say, "run the Forage that wrote it")
    return ok("layout", f"layout {layout}")


async def _configuration(client: Redis) -> dict[str, str]:
    """Empty where this Redis does not tell, as those of clouds do not."""
    try:
        found = await client.config_get("append*", "min-replicas-*", "stream-node-max-entries")
    except ResponseError:
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _durability(configuration: Mapping[str, str]) -> Check:
    promise = durability(configuration)
    if not configuration:
        say = "this Redis does not tell how it keeps writes (CONFIG GET is refused)"
        return warning("durability", say, "see that appendfsync is always")
    if configuration.get("appendonly") != "yes":
        return fault("durability", promise, SET.format("appendonly yes"))
    if configuration.get("appendfsync") != "always":
        return warning("durability", promise, SET.format("appendfsync always"))
    return ok("durability", promise)


def _replicas(info: Mapping[str, Any], configuration: Mapping[str, str], needed: int) -> Check:
    minimum = int(configuration.get("min-replicas-to-write", 0))
    online = int(info.get("connected_slaves", 0))
    if needed > online:
        say = f"FORAGE_REDIS_REPLICAS is {needed} and {online} are connected"
        return fault("replicas", f"{say}: nothing is acknowledged", "start them, or ask for fewer")
    if online and minimum < max(needed, 1):
        say = f"{online} connected, and min-replicas-to-write is {minimum}"
        advice = SET.format(f"min-replicas-to-write {max(needed, 1)}")
        return warning("replicas", f"{say}: a failover loses rewards", advice)
    return ok("replicas", f"{online} connected, {needed} waited for")


def _memory(used: int, limit: int) -> Check:
    if not limit or used <= FULL * limit:
        return ok("memory", f"{size(used)} used of {size(limit) if limit else 'all'}")
    say = f"{size(used)} of {size(limit)} are used: a full Redis takes no rewards"
    judge = fault if used >= limit else warning
    return judge("memory", say, "raise maxmemory; FORAGE_RETENTION_DAYS keeps the log small")


def _erasure(configuration: Mapping[str, str]) -> Iterator[Check]:
    entries = configuration.get("stream-node-max-entries", "unknown")
    if configuration and entries != "1":
        say = f"stream-node-max-entries is {entries}: bytes of an erased unit stay beside others'"
        yield warning("erasure", say, SET.format("stream-node-max-entries 1"))


async def _clock(client: Redis) -> Check:
    before = time.time()
    seconds, micros = await client.time()
    after = time.time()
    skew = (before + after) / 2 - (seconds + micros / 1e6)
    if abs(skew) > MOST_SKEW_S:
        say = f"{skew:+.0f} s from that of Redis: services refuse to write"
        return fault("clock", say, "run NTP on both")
    if abs(skew) > SKEW_S + (after - before):
        return warning("clock", f"{skew:+.1f} s from that of Redis", "run NTP on both")
    return ok("clock", f"{1000 * skew:+.0f} ms from that of Redis")
