"""The shared store: how Redis is set, how full it is, who writes to it, what its clock says."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from service.log.stores.redis_fitness import durability, unfit
from service.log.stores.redis_keeping import PROCESSES
from service.log.stores.redis_scripts import CLOCK_SKEW_S, EXPERIMENTS, LAYOUT, key_of
from service.maintenance.doctor.checks import Check, size
from service.maintenance.doctor.sqlite import tail
from service.settings import Settings

TIMEOUT_S = 2.0
SLOW_S = 0.02
SKEW_S = 1.0
FULL = 0.8


async def examine_redis(settings: Settings) -> list[Check]:
    try:
        client: Redis = Redis.from_url(
            settings.store, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        )
    except ValueError:  # its text may hold a part of the password
        say = "not a Redis URL"
        return [Check("store", "fault", say, "redis://[[user]:password@]host[:port][/db]")]
    found: list[Check] = []
    async with client:
        try:
            async for check in _examine(client, settings):
                found.append(check)  # noqa: PERF401 - what came before a fault is kept
        except (RedisError, OSError) as fault:
            kind = type(fault).__name__  # its text may hold the address with the password
            say = f"cannot be reached or does not answer ({kind})"
            found.append(Check("store", "fault", say, "start Redis, or correct FORAGE_STORE"))
    return found


async def _examine(client: Any, settings: Settings) -> AsyncIterator[Check]:
    start = time.perf_counter()
    await client.ping()
    seconds = time.perf_counter() - start
    info: dict[str, Any] = await client.info()
    if reason := unfit(info):
        yield Check("store", "fault", reason, "a service would not start on it")
    else:
        yield Check(
            "store", "ok", f"Redis {info['redis_version']}, answers in {1000 * seconds:.1f} ms"
        )
    if seconds > SLOW_S:
        say = f"an answer took {1000 * seconds:.0f} ms, and every reward waits for one"
        yield Check("store", "warning", say, "put it nearer to the services")
    if info.get("role") != "master":
        yield Check("store", "fault", "this is a replica: it takes no writes", "name its primary")
    yield _layout(await client.get("forage:layout"))
    for check in _durable(info, await _configuration(client), settings):
        yield check
    yield await _clock(client)
    for check in await _services(client):
        yield check
    for name in sorted(each.decode() for each in await client.smembers(EXPERIMENTS)):
        last = await client.xrevrange(key_of(name, "events"), count=1)
        kept = [int(at) for at in await client.hkeys(key_of(name, "snapshots"))]
        position = int(last[0][0].partition(b"-")[2]) if last else max(kept, default=0)
        yield tail(name, position, max(kept, default=None), settings)


def _layout(found: bytes | None) -> Check:
    if found is None:
        return Check("layout", "ok", "empty: the first `forage serve` lays it out")
    layout = int(found)
    if layout > LAYOUT:
        say = f"layout {layout} was written by a newer Forage; this one knows {LAYOUT}"
        return Check("layout", "fault", say, "run that version")
    return Check("layout", "ok", f"layout {layout}")


async def _configuration(client: Any) -> dict[str, str]:
    """Empty where this Redis does not tell, as those of clouds do not."""
    try:
        found = await client.config_get("append*", "min-replicas-*", "stream-node-max-entries")
    except ResponseError:
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _durable(
    info: Mapping[str, Any], configuration: Mapping[str, str], settings: Settings
) -> list[Check]:
    found: list[Check] = []
    promise = durability(configuration, 0)
    advice = "CONFIG SET {}, and the same in redis.conf"
    if not configuration:
        say = "this Redis does not tell how it keeps writes (CONFIG GET is refused)"
        found.append(Check("durability", "warning", say, "see that appendfsync is always"))
    elif configuration.get("appendonly") != "yes":
        found.append(Check("durability", "fault", promise, advice.format("appendonly yes")))
    elif configuration.get("appendfsync") != "always":
        found.append(Check("durability", "warning", promise, advice.format("appendfsync always")))
    else:
        found.append(Check("durability", "ok", promise))
    if info.get("aof_last_write_status", "ok") != "ok":
        say = "Redis could not write its append-only file"
        found.append(Check("durability", "fault", say, "look at its disk"))
    needed, minimum = settings.redis_replicas, int(configuration.get("min-replicas-to-write", 0))
    online = int(info.get("connected_slaves", 0))
    if needed > online:
        say = (
            f"FORAGE_REDIS_REPLICAS is {needed} and {online} are connected: nothing is acknowledged"
        )
        found.append(Check("replicas", "fault", say, "start them, or ask for fewer"))
    elif online and minimum < max(needed, 1):
        say = (
            f"{online} connected, and min-replicas-to-write is {minimum}: a failover loses rewards"
        )
        advised = advice.format(f"min-replicas-to-write {max(needed, 1)}")
        found.append(Check("replicas", "warning", say, advised))
    else:
        found.append(Check("replicas", "ok", f"{online} connected, {needed} waited for"))
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if limit and used > FULL * limit:
        say = f"{size(used)} of {size(limit)} are used: a full Redis takes no rewards"
        more = "raise maxmemory; FORAGE_RETENTION_DAYS keeps the log small"
        found.append(Check("memory", "fault" if used >= limit else "warning", say, more))
    else:
        found.append(
            Check("memory", "ok", f"{size(used)} used of {size(limit) if limit else 'all'}")
        )
    if configuration and configuration.get("stream-node-max-entries") != "1":
        found.append(
            Check(
                "erasure",
                "warning",
                "stream-node-max-entries is "
                f"{configuration.get('stream-node-max-entries', 'unknown')}: bytes of an erased "
                "unit stay beside others'",
                advice.format("stream-node-max-entries 1"),
            )
        )
    return found


async def _clock(client: Any) -> Check:
    before = time.time()
    seconds, micros = await client.time()
    after = time.time()
    skew = (before + after) / 2 - (seconds + micros / 1e6)
    if abs(skew) > CLOCK_SKEW_S:
        say = f"{skew:+.0f} s from that of Redis: marks of rewards are forgotten too early"
        return Check("clock", "fault", say, "run NTP on both")
    if abs(skew) > SKEW_S + (after - before):
        return Check("clock", "warning", f"{skew:+.1f} s from that of Redis", "run NTP on both")
    return Check("clock", "ok", f"{1000 * skew:+.0f} ms from that of Redis")


async def _services(client: Any) -> list[Check]:
    seconds, _ = await client.time()
    living = await client.zcount(PROCESSES[0], seconds, "+inf")
    if living:
        return [Check("services", "ok", f"{living} live on this log")]
    return [Check("services", "ok", "none lives on this log")]
