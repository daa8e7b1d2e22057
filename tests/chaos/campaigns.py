"""The campaigns: one service on SQLite, three on a Redis that fails in every way."""

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.campaign import Campaign, Goal, Result
from tests.chaos.processes import Replica, trainer
from tests.chaos.proxy import KINDS, Proxy
from tests.support.redis_server import RedisServer

REPLICAS: Final = 3
FROZEN: Final = "freeze"


async def embedded(folder: Path, goal: Goal, rng: Random) -> Result:
    """SQLite: the one service and its trainer are killed."""
    store = f"sqlite:///{folder}/forage.db"
    replica = Replica("service", folder, store)
    training = trainer(folder, store, replica.url)
    campaign = Campaign("sqlite", folder, store, [replica], training, rng)
    result = await campaign.run(goal, campaign.kill, campaign.kill_trainer)
    if replica.ended:  # nothing that it needs was missing
        result.violations.append(f"the service ended by itself: {replica.ended}")
    return result


async def shared(folder: Path, goal: Goal, rng: Random) -> Result:
    """Redis: services, trainer and Redis itself are killed, and what lies between them fails."""
    redis = RedisServer(folder)
    await asyncio.to_thread(redis.start)
    proxies = [await Proxy(redis.port).start() for _ in range(REPLICAS)]
    try:
        replicas = [
            Replica(f"service-{number}", folder, _url(proxy))
            for number, proxy in enumerate(proxies, start=1)
        ]
        training = trainer(folder, _url(proxies[0]), replicas[0].url)
        campaign = Campaign("redis", folder, redis.url, replicas, training, rng)
        alone = asyncio.Lock()  # a Redis that is frozen is not restarted meanwhile

        async def kill_redis() -> None:
            await asyncio.sleep(rng.uniform(4.0, 12.0))
            async with alone:
                redis.kill()
                campaign.killed("redis")
                try:
                    await asyncio.sleep(rng.expovariate(1 / 0.5))
                finally:
                    await asyncio.to_thread(redis.start)

        async def freeze() -> None:
            await asyncio.sleep(rng.uniform(8.0, 24.0))
            async with alone:
                with redis.frozen():
                    await asyncio.sleep(rng.uniform(0.5, 3.0))
            campaign.result.redis_faults[FROZEN] += 1

        async def misbehave() -> None:
            await asyncio.sleep(rng.uniform(0.3, 2.5))
            chosen = rng.sample(proxies, rng.choice([1, 1, 2, REPLICAS]))
            kind, seconds = rng.choice(KINDS), rng.uniform(0.2, 2.5)
            delay_s = rng.choice([0.05, 0.3, 2.5])  # the last is beyond a service's patience
            noticed = [proxy.episode(kind, seconds, delay_s) for proxy in chosen]
            if any(await asyncio.gather(*noticed)):
                campaign.result.redis_faults[kind] += 1

        return await campaign.run(
            goal, campaign.kill, campaign.kill_trainer, kill_redis, freeze, misbehave
        )
    finally:
        for proxy in proxies:
            await proxy.close()
        redis.kill()


def _url(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"
