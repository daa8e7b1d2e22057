"""The campaigns: one service on SQLite, three on a Redis that fails in every way."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.campaign import PROGRESS, PROGRESS_S, Campaign, Result, Work
from tests.chaos.judge import Cut
from tests.chaos.losses import (
    append_only_file,
    cut_append_only,
    cut_tail,
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
from tests.chaos.shim import Disk, Unavailable, build
from tests.support.redis_server import RedisServer

SERVICES: Final = ("service-1", "service-2", "service-3")
SINCE_COPY: Final = 50_000
"""Events and rows that are read before a log falls back to a copy."""


def power(folder: Path) -> tuple[Path, Disk | None, str]:
    """Return a folder, the disk that it is on, and why none can lose its power here, or ""."""
    place = folder / "data"
    place.mkdir()
    try:
        return place, Disk(build(folder), place, folder / "data-synced"), ""
    except Unavailable as reason:
        return place, None, str(reason)


async def embedded(folder: Path, seconds: float, keep_stores: bool, rng: Random) -> Result:
    """SQLite: the one service and its trainer are killed, the host loses power, and the end of the
    log is lost."""
    place, disk, because = power(folder)
    file = place / "forage.db"
    store = f"sqlite:///{file}"
    replica = Replica("service", folder, store, **(disk.environment if disk else {}))
    training = trainer(folder, store, replica.url)
    campaign = Campaign("sqlite", folder, store, [replica], training, rng)
    campaign.result.shim_because = because

    async def lose_power() -> None:
        await asyncio.sleep(rng.uniform(4.0, 12.0))
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        assert disk is not None
        async with campaign.alone:
            if replica.kill():
                training.kill()
                disk.lose_power()
                campaign.result.kills["service, power"] += 1

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
                files = [file, file.with_name(f"{file.name}-wal")]
                await cut_tail(store, files, partial(cut_wal, file, rng))
                if disk is not None:
                    disk.adopt()
                cut = before.after(await read_tail(store))
            await campaign.recovered(cut)

    works = [campaign.kill, campaign.stop, campaign.kill_trainer]
    if not keep_stores:
        works += [lose_tail, partial(lose_file, campaign, file, [replica, training], disk)]
    if disk is not None:
        works.append(lose_power)
    result = await campaign.run(seconds, *works)
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
            await campaign.expect_failed(f"file was {how}", replica.positions)
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


async def shared(folder: Path, seconds: float, keep_stores: bool, rng: Random) -> Result:
    """Redis: services, trainer and Redis are killed, and the traffic between them fails."""
    place, disk, because = power(folder)
    redis = RedisServer(place, tcp=True, environment=disk.environment if disk else {})
    proxies = [Proxy(redis.port) for _ in SERVICES]
    await asyncio.to_thread(redis.start)
    try:
        for proxy in proxies:
            await proxy.start()
        campaign = _on_redis(folder, rng, redis, proxies)
        campaign.result.shim_because = because
        return await campaign.run(seconds, *_works(campaign, redis, proxies, disk, keep_stores))
    finally:
        for proxy in proxies:
            await proxy.close()
        redis.kill()


def _on_redis(folder: Path, rng: Random, redis: RedisServer, proxies: Sequence[Proxy]) -> Campaign:
    urls = [f"redis://127.0.0.1:{proxy.port}/0" for proxy in proxies]
    replicas = [Replica(name, folder, url) for name, url in zip(SERVICES, urls, strict=True)]
    training = trainer(folder, urls[0], replicas[0].url)
    return Campaign("redis", folder, redis.url, replicas, training, rng)


def _works(
    campaign: Campaign,
    redis: RedisServer,
    proxies: Sequence[Proxy],
    disk: Disk | None,
    keep_stores: bool,
) -> list[Work]:
    result, rng, alone = campaign.result, campaign.rng, campaign.alone

    async def kill_redis() -> None:
        await asyncio.sleep(rng.uniform(4.0, 12.0))
        async with alone:
            redis.kill()
            if disk is not None and rng.random() < 0.5:
                disk.lose_power()
                campaign.result.kills["redis, power"] += 1
            else:
                campaign.result.kills["redis"] += 1
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
                cut = await _cut(redis, how, campaign, proxies, disk)
        await campaign.recovered(cut)

    async def freeze() -> None:
        await asyncio.sleep(rng.uniform(8.0, 24.0))
        async with alone:
            with redis.frozen():
                await asyncio.sleep(rng.uniform(0.5, 3.0))
        result.redis_faults["freeze"] += 1

    async def misbehave() -> None:
        await asyncio.sleep(rng.uniform(0.3, 2.5))
        chosen = rng.sample(proxies, rng.choice([1, 1, 2, len(proxies)]))
        kind, seconds = rng.choice(KINDS), rng.uniform(0.2, 2.5)
        delay_s = rng.choice([0.05, 0.3, 2.5])  # the last is beyond a service's patience
        noticed = [proxy.episode(kind, seconds, delay_s) for proxy in chosen]
        if any(await asyncio.gather(*noticed)):
            result.redis_faults[kind] += 1

    works = [campaign.kill, campaign.stop, campaign.kill_trainer, kill_redis, freeze, misbehave]
    if not keep_stores:
        works += [lose_tail, partial(empty, campaign, redis, proxies)]
    return works


async def _cut(
    redis: RedisServer,
    how: str,
    campaign: Campaign,
    proxies: Sequence[Proxy],
    disk: Disk | None,
) -> Cut:
    """how: alive, killed or stopped, the services meanwhile."""
    replicas = campaign.replicas
    with held(replicas if how != "alive" else []):
        if how == "stopped":
            await campaign.stopped(replicas)
        elif how == "killed":
            for replica in replicas:
                replica.kill()
        with frozen(replicas):
            before = await quiet_tail(redis.url, proxies)
            redis.kill()
            file = append_only_file(redis.folder)

            def cut() -> None:
                cut_append_only(file, campaign.rng)
                if disk is not None:
                    disk.adopt()  # else the next loss of power brings back what is cut

            await cut_tail(redis.url, [file], cut, redis.start, redis.kill)
            gone = before.after(await read_tail(redis.url))
            return replace(gone, watched=how == "alive")


async def empty(campaign: Campaign, host: RedisServer, proxies: Sequence[Proxy]) -> None:
    """Redis loses everything under the services; an earlier copy is restored."""
    await asyncio.sleep(campaign.rng.uniform(10.0, 40.0))
    async with campaign.alone:
        copy = await asyncio.to_thread(dump_redis, host.url)
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        await campaign.all_ready()  # one that starts on an empty store begins anew
        with campaign.losing("Redis emptied"), held(campaign.replicas):
            with frozen(campaign.replicas):
                before = await quiet_tail(host.url, proxies, SINCE_COPY)
                host.command("FLUSHALL")
            for replica in campaign.replicas:
                await campaign.expect_failed("Redis was emptied", replica.alive)
            for replica in campaign.replicas:
                replica.kill()
            strays = await read_tail(host.url, SINCE_COPY)  # written before anybody noticed
            await asyncio.to_thread(restore_redis, host.url, copy)
            cut = before.after(await read_tail(host.url, SINCE_COPY))
            cut.rows |= {row.id for row in strays.rows}
            campaign.cuts.append(cut)
        await campaign.all_ready()
