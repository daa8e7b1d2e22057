"""The campaigns with workers: one of them is killed every few seconds, and nothing else fails."""

import asyncio
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from tests.chaos.campaign import Campaign, Result
from tests.chaos.processes import Replica, kill_one, listeners, trainer
from tests.support.postgres_server import postgres_server
from tests.support.redis_server import RedisServer

EVERY_S: Final = 5.0
LEAST: Final = 2
"""Kills of a campaign, however slow the machine is."""
LOOK_S: Final = 0.02


async def killed_workers(
    name: str, folder: Path, store: str, workers: int, seconds: float, rng: Random
) -> Result:
    """Kill one worker every few seconds, once all listen again. A request that was begun before the
    sockets of a killed worker were closed may fail, and no other."""
    replica = Replica("service", folder, store, FORAGE_WORKERS=str(workers))
    campaign = Campaign(name, folder, store, [replica], trainer(folder, store, replica.url), rng)
    kills = list[tuple[float, float]]()

    async def kill() -> None:
        last = kills[-1][0] if kills else monotonic()
        await asyncio.sleep(max(last + EVERY_S - monotonic(), 0.0))
        while listeners(replica.port) < workers:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(LOOK_S)
        began = monotonic()
        await kill_one(rng.choice(replica.children))
        kills.append((began, monotonic()))
        campaign.result.kills["worker"] += 1

    result = await campaign.run(seconds, kill, enough=lambda: len(kills) >= LEAST)
    for began, ended, what in campaign.load.failures:
        if any(began <= gone and ended >= killed for killed, gone in kills):
            result.cut_off += 1
        else:
            result.violations.append(f"a request failed without a kill: {what}")
    return result


async def on_sqlite(folder: Path, seconds: float, workers: int, rng: Random) -> Result:
    store = f"sqlite:///{folder}/forage.db"
    return await killed_workers("sqlite", folder, store, workers, seconds, rng)


async def on_redis(folder: Path, seconds: float, workers: int, rng: Random) -> Result:
    redis = RedisServer(folder, tcp=True)
    await asyncio.to_thread(redis.start)
    try:
        return await killed_workers("redis", folder, redis.url, workers, seconds, rng)
    finally:
        redis.kill()


async def on_postgres(folder: Path, seconds: float, workers: int, rng: Random) -> Result:
    with postgres_server(folder / "postgres.log") as postgres:
        await asyncio.to_thread(postgres.start)
        try:
            return await killed_workers("postgres", folder, postgres.url, workers, seconds, rng)
        finally:
            postgres.kill()


WORKERS_CAMPAIGNS: Final = {"sqlite": on_sqlite, "redis": on_redis, "postgres": on_postgres}
