"""The campaigns: one service on SQLite, three on a Redis that fails in every way."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, Literal

from benchmarks.support.redis_server import RedisServer
from tests.chaos.campaign import Campaign, Goal, Result
from tests.chaos.hosts import Host, Network, Shape, Wanted, network
from tests.chaos.processes import Replica, trainer
from tests.chaos.proxy import KINDS, Proxy

SERVICES: Final = ("service-1", "service-2", "service-3")
REDIS: Final = "redis"
TRAINER: Final = "trainer"
FROZEN: Final = "freeze"
REDIS_S: Final = 10.0  # for its PING
Break = Literal["cut off", "loose", "partition", "one way"]
BREAKS: Final[tuple[Break, ...]] = ("cut off", "loose", "partition", "one way")
"""Faults of a line that no kernel is too poor for."""
LOOSE_S: Final = 0.1
"""So long is a loose line up, and so long down."""


async def embedded(folder: Path, goal: Goal, rng: Random) -> Result:
    """SQLite: the one service and its trainer are killed."""
    store = f"sqlite:///{folder}/forage.db"
    replica = Replica("service", folder, store)
    training = trainer(folder, store, replica.url)
    campaign = Campaign("sqlite", folder, store, [replica], training, rng)
    result = await campaign.run(goal, campaign.kill, campaign.stop, campaign.kill_trainer)
    if replica.ended:  # nothing that it needs was missing
        result.violations.append(f"the service ended by itself: {replica.ended}")
    return result


async def shared(folder: Path, goal: Goal, rng: Random, hosts: Wanted = "auto") -> Result:
    """Redis: services, trainer and Redis itself are killed, and what lies between them fails.
    Raises NetworkError where `hosts` are to be namespaces and cannot be."""
    with network([REDIS, *SERVICES, TRAINER], hosts) as net:
        redis = RedisHost(folder, net.hosts[REDIS])
        proxies = [Proxy(redis.port, redis.host) for _ in SERVICES]
        await asyncio.to_thread(redis.start)
        try:
            for proxy in proxies:
                await proxy.start()
            return await _shared(folder, goal, rng, net, redis, proxies)
        finally:
            for proxy in proxies:
                await proxy.close()
            redis.kill()


async def _shared(
    folder: Path,
    goal: Goal,
    rng: Random,
    net: Network,
    redis: "RedisHost",
    proxies: Sequence[Proxy],
) -> Result:
    urls = [f"redis://{redis.host.address}:{proxy.port}/0" for proxy in proxies]
    replicas = [
        Replica(name, folder, url, net.hosts[name])
        for name, url in zip(SERVICES, urls, strict=True)
    ]
    training = trainer(folder, urls[0], replicas[0].url, net.hosts[TRAINER])
    campaign = Campaign("redis", folder, redis.url, replicas, training, rng)
    result = campaign.result
    result.hosts, result.loopback_because = net.mode, net.because
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
        result.redis_faults[FROZEN] += 1

    async def misbehave() -> None:
        await asyncio.sleep(rng.uniform(0.3, 2.5))
        chosen = rng.sample(proxies, rng.choice([1, 1, 2, len(proxies)]))
        kind, seconds = rng.choice(KINDS), rng.uniform(0.2, 2.5)
        delay_s = rng.choice([0.05, 0.3, 2.5])  # the last is beyond a service's patience
        noticed = [proxy.episode(kind, seconds, delay_s) for proxy in chosen]
        if any(await asyncio.gather(*noticed)):
            result.redis_faults[kind] += 1

    async def disconnect() -> None:
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        connected = [proxy for proxy in proxies if proxy.connections]
        if not connected:
            return  # what nobody notices is no fault
        kind = rng.choice([*BREAKS, *net.shapes])
        first = SERVICES[proxies.index(rng.choice(connected))]
        others = [each for each in SERVICES if each != first]
        concerned = [first, *rng.sample(others, rng.choice([0, 0, 1, 2]))]
        await broken(net, kind, rng.choice([first, REDIS]), concerned, rng.uniform(0.5, 5.0))
        result.network_faults[kind] += 1

    works = [campaign.kill, campaign.stop, campaign.kill_trainer, kill_redis, freeze, misbehave]
    if net.mode == "namespaces":
        works.append(disconnect)
    return await campaign.run(goal, *works)


async def broken(
    net: Network, kind: Break | Shape, host: str, services: Sequence[str], seconds: float
) -> None:
    """One of BREAKS or of the network's shapes: at the line of `host`, or between Redis and
    `services`.

    one way   Redis hears nothing of them, or they nothing of Redis if that is `host`
    """
    with ExitStack() as stack:
        match kind:
            case "loose":
                until = monotonic() + seconds
                while monotonic() < until:
                    with net.cut_off(host):
                        await asyncio.sleep(LOOSE_S)
                    await asyncio.sleep(LOOSE_S)
                return
            case "cut off":
                stack.enter_context(net.cut_off(host))
            case "partition":
                stack.enter_context(net.parted(REDIS, services))
            case "one way":
                for service in services:
                    ends = (service, REDIS) if host == REDIS else (REDIS, service)
                    stack.enter_context(net.deaf(*ends))
            case shape:
                stack.enter_context(net.shaped(host, shape))
        await asyncio.sleep(seconds)


class RedisHost(RedisServer):
    """A Redis on a host of its own. Whether it answers is asked there: its line may be down."""

    def __init__(self, folder: Path, host: Host) -> None:
        bound = dict.fromkeys(["127.0.0.1", host.address])
        super().__init__(folder, "--bind", *bound, "--protected-mode", "no")
        self.host = host
        self.url = f"redis://{host.address}:{self.port}/0"
        self._command = host.command(self._command)

    def _answers(self) -> bool:
        try:
            with self.host.socket() as line:
                line.settimeout(REDIS_S)
                line.connect(("127.0.0.1", self.port))
                line.sendall(b"PING\r\n")
                return line.recv(64) == b"+PONG\r\n"
        except OSError:
            return False
