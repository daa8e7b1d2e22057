"""The campaigns: one service on SQLite, three on a Redis that fails in every way."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, Literal

from redis import Redis

from tests.chaos.campaign import PROGRESS, PROGRESS_S, Campaign, Goal, Result
from tests.chaos.hosts import HERE, Host, Network, Shape, Wanted, network
from tests.chaos.judge import Cut
from tests.chaos.losses import (
    cut_append_only,
    cut_wal,
    dump_redis,
    frozen,
    held,
    quiet_tail,
    read_tail,
    remove,
    restore_redis,
    run_forage,
)
from tests.chaos.processes import Process, Replica, trainer
from tests.chaos.proxy import KINDS, Proxy
from tests.chaos.shim import Clock, Disk, Unavailable, build
from tests.support.redis_server import RedisServer

SERVICES: Final = ("service-1", "service-2", "service-3")
REDIS: Final = "redis"
TRAINER: Final = "trainer"
FROZEN: Final = "freeze"
REDIS_S: Final = 10.0  # for its PING
Break = Literal["cut off", "loose", "partition", "one way"]
BREAKS: Final[tuple[Break, ...]] = ("cut off", "loose", "partition", "one way")
"""Faults of a line that no kernel is too poor for."""
SINCE_COPY: Final = 50_000
"""Events and rows that are read before a log falls back to a copy."""
LOOSE_S: Final = 0.1
"""So long is a loose line up, and so long down."""


class Shims:
    """What the shim gives the processes of a campaign; nothing, where it cannot be built."""

    def __init__(self, folder: Path) -> None:
        self.because, self._shim, self._folder = "", None, folder
        self.clocks: list[Clock] = []
        try:
            self._shim = build(folder)
        except Unavailable as reason:
            self.because = str(reason)

    def disk(self, name: str) -> tuple[Path, Disk | None]:
        """A folder to lie on it."""
        place = self._folder / name
        place.mkdir()
        if self._shim is None:
            return place, None
        return place, Disk(self._shim, place, self._folder / f"{name}-synced")

    def clock(self, name: str) -> dict[str, str]:
        """Environment of a process with a clock of its own."""
        if self._shim is None:
            return {}
        self.clocks.append(Clock(self._shim, self._folder / f"{name}.clock"))
        return dict(self.clocks[-1].environment)


async def embedded(folder: Path, goal: Goal, rng: Random) -> Result:
    """SQLite: the one service and its trainer are killed, the host loses power, the end of the log
    is lost, and the clock goes wrong."""
    shims = Shims(folder)
    place, disk = shims.disk("data")
    file = place / "forage.db"
    store = f"sqlite:///{file}"
    settings = shims.clock("service") | (disk.environment if disk else {})
    replica = Replica("service", folder, store, HERE, **settings)
    training = trainer(folder, store, replica.url)
    campaign = Campaign("sqlite", folder, store, [replica], training, rng)
    campaign.result.shim_because = shims.because

    async def lose_power() -> None:
        await asyncio.sleep(rng.uniform(4.0, 12.0))
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        assert disk is not None
        async with campaign.alone:
            if replica.kill():
                training.kill()
                disk.lose_power()
                campaign.killed("service, power")

    async def lose_tail() -> None:
        """The end of the write-ahead log is gone when the service starts."""
        await asyncio.sleep(rng.uniform(6.0, 18.0))
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        async with campaign.alone:
            with campaign.losing("write-ahead log cut"), held([replica, training]):
                if not replica.kill():
                    return
                training.kill()
                before = await read_tail(store)
                cut_wal(file, rng)
                if disk is not None:
                    disk.adopt()
                cut = before.after(await read_tail(store))
            await campaign.recovered(cut)

    works = [campaign.kill, campaign.stop, campaign.kill_trainer]
    if not goal.keep_stores:
        works += [lose_tail, partial(lose_file, campaign, file, [replica, training], disk)]
    if disk is not None:
        works += [lose_power, partial(campaign.jump, shims.clocks)]
    result = await campaign.run(goal, *works)
    if replica.ended:  # nothing that it needs was missing
        result.violations.append(f"the service ended by itself: {replica.ended}")
    return result


async def lose_file(
    campaign: Campaign, file: Path, processes: Sequence[Process], disk: Disk | None
) -> None:
    """The file is gone under the service, or an older copy is in its place."""
    rng, store, [replica] = campaign.rng, f"sqlite:///{file}", campaign.replicas
    await asyncio.sleep(rng.uniform(10.0, 30.0))
    copy = file.parents[1] / f"copy-{campaign.result.losses.total()}.db"
    await asyncio.to_thread(run_forage, "backup", "--to", str(copy), "--store", store)
    await campaign.load.progress(PROGRESS, PROGRESS_S)
    how = rng.choice(("removed", "an older one"))
    async with campaign.alone:
        await replica.ready(campaign.http)
        with campaign.losing(f"file {how}"), held(processes):
            with frozen([replica]):
                before = await read_tail(store, SINCE_COPY)
                remove(file, "", "-wal", "-shm")
                if how != "removed":
                    shutil.copyfile(copy, file)
            await campaign.expect_failed(f"file was {how}")
            for process in processes:
                process.kill()
            if how == "removed":
                remove(file, "", "-wal", "-shm", ".key")
                await asyncio.to_thread(
                    run_forage, "restore", "--from", str(copy), "--store", store
                )
            if disk is not None:
                disk.adopt()
            cut = before.after(await read_tail(store, SINCE_COPY))
        campaign.cuts.append(cut)
        await campaign.all_ready()


async def shared(folder: Path, goal: Goal, rng: Random, hosts: Wanted = "auto") -> Result:
    """Redis: services, trainer and Redis itself are killed, and what lies between them fails.
    Raises NetworkError where `hosts` are to be namespaces and cannot be."""
    with network([REDIS, *SERVICES, TRAINER], hosts) as net:
        shims = Shims(folder)
        place, disk = shims.disk("data")
        environment = shims.clock(REDIS) | (disk.environment if disk else {})
        redis = RedisHost(place, net.hosts[REDIS], environment)
        proxies = [Proxy(redis.port, redis.host) for _ in SERVICES]
        await asyncio.to_thread(redis.start)
        try:
            for proxy in proxies:
                await proxy.start()
            return await _shared(folder, goal, rng, net, redis, proxies, shims, disk)
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
    shims: Shims,
    disk: Disk | None,
) -> Result:
    urls = [f"redis://{redis.host.address}:{proxy.port}/0" for proxy in proxies]
    replicas = [
        Replica(name, folder, url, net.hosts[name], **shims.clock(name))
        for name, url in zip(SERVICES, urls, strict=True)
    ]
    training = trainer(folder, urls[0], replicas[0].url, net.hosts[TRAINER])
    campaign = Campaign("redis", folder, redis.url, replicas, training, rng)
    result = campaign.result
    result.hosts, result.loopback_because = net.mode, net.because
    result.shim_because = shims.because
    alone = campaign.alone

    async def kill_redis() -> None:
        await asyncio.sleep(rng.uniform(4.0, 12.0))
        async with alone:
            redis.kill()
            if disk is not None and rng.random() < 0.5:
                disk.lose_power()
                campaign.killed("redis, power")
            else:
                campaign.killed("redis")
            try:
                await asyncio.sleep(rng.expovariate(1 / 0.5))
            finally:
                await asyncio.to_thread(redis.start)

    async def lose_tail() -> None:
        """Redis comes back without the last of what it had, to services that go on, or that were
        stopped or killed meanwhile."""
        await asyncio.sleep(rng.uniform(6.0, 18.0))
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        how = rng.choice(("alive", "alive", "killed", "stopped"))
        async with alone:
            with campaign.losing(f"append-only file cut, services {how}"):
                cut = await _cut(redis, replicas, how, campaign, rng)
        await campaign.recovered(cut)

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

    works = [campaign.kill, campaign.stop, campaign.kill_trainer, kill_redis, freeze, misbehave]
    if not goal.keep_stores:
        works += [lose_tail, partial(empty, campaign, redis)]
    if shims.clocks:
        works.append(partial(campaign.jump, shims.clocks))
    if net.mode == "namespaces":
        works.append(partial(disconnect, net, proxies, rng, result))
    return await campaign.run(goal, *works)


async def _cut(
    redis: "RedisHost", replicas: Sequence[Replica], how: str, campaign: Campaign, rng: Random
) -> Cut:
    """how: alive, killed or stopped, the services meanwhile"""
    with held(replicas if how != "alive" else []):
        if how == "stopped":
            await campaign.stopped(replicas)
        elif how == "killed":
            for replica in replicas:
                replica.kill()
        with frozen(replicas):
            before = await quiet_tail(redis.url)
            redis.kill()
            cut_append_only(redis.folder, rng)
            await asyncio.to_thread(redis.start)
            return before.after(await read_tail(redis.url))


async def empty(campaign: Campaign, host: "RedisHost") -> None:
    """Redis loses everything under the services; an earlier copy is restored."""
    await asyncio.sleep(campaign.rng.uniform(10.0, 40.0))
    async with campaign.alone:
        copy = await asyncio.to_thread(dump_redis, host.url)
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        with campaign.losing("Redis emptied"), held(campaign.replicas):
            with Redis.from_url(host.url) as client:
                with frozen(campaign.replicas):
                    before = await quiet_tail(host.url, SINCE_COPY)
                    client.flushall()
                await campaign.expect_failed("Redis was emptied")
                for replica in campaign.replicas:
                    replica.kill()
                client.flushall()
            await asyncio.to_thread(restore_redis, host.url, copy)
            campaign.cuts.append(before.after(await read_tail(host.url, SINCE_COPY)))
        await campaign.all_ready()


async def disconnect(net: Network, proxies: Sequence[Proxy], rng: Random, result: Result) -> None:
    """One fault of a line."""
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

    def __init__(self, folder: Path, host: Host, environment: Mapping[str, str]) -> None:
        bound = dict.fromkeys(["127.0.0.1", host.address])
        options = ["--bind", *bound, "--protected-mode", "no"]
        super().__init__(folder, *options, tcp=True, environment=environment)
        self.host, self.folder = host, folder
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
