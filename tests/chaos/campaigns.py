"""The campaigns: one service on SQLite, and three on a Redis or a PostgreSQL that fails."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.campaign import PROGRESS, PROGRESS_S, Campaign, Result, Work
from tests.chaos.losses import (
    TAIL,
    Tail,
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
from tests.support.postgres_server import PostgresServer, postgres_server
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
            await campaign.may_kill.wait()
            if replica.kill():
                training.kill()
                disk.lose_power()
                campaign.result.kills["service, power"] += 1

    async def lose_tail() -> None:
        """The end of the write-ahead log is gone when the service starts."""
        await campaign.rest()
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


@dataclass(frozen=True)
class Shared:
    """A server that the services of a campaign share, each through a proxy of its own.

    disk   of the server, if it can lose power
    """

    campaign: Campaign
    server: RedisServer | PostgresServer
    proxies: Sequence[Proxy]
    disk: Disk | None = None

    async def kill(self) -> None:
        """The server is killed, and starts again soon."""
        rng, kills = self.campaign.rng, self.campaign.result.kills
        await asyncio.sleep(rng.uniform(4.0, 12.0))
        async with self.campaign.alone:
            await self.campaign.may_kill.wait()
            self.server.kill()
            if self.disk is not None and rng.random() < 0.5:
                self.disk.lose_power()
                kills["server, power"] += 1
            else:
                kills["server"] += 1
            try:
                await asyncio.sleep(rng.expovariate(1 / 0.5))
            finally:
                await asyncio.to_thread(self.server.start)

    async def freeze(self) -> None:
        rng = self.campaign.rng
        await asyncio.sleep(rng.uniform(8.0, 24.0))
        async with self.campaign.alone:
            with self.server.frozen():
                await asyncio.sleep(rng.uniform(0.5, 3.0))
        self.campaign.result.server_faults["freeze"] += 1

    async def disturb(self) -> None:
        """The traffic of some services with the server fails."""
        rng = self.campaign.rng
        await asyncio.sleep(rng.uniform(0.3, 2.5))
        chosen = rng.sample(self.proxies, rng.choice([1, 1, 2, len(self.proxies)]))
        kind, seconds = rng.choice(KINDS), rng.uniform(0.2, 2.5)
        delay_s = rng.choice([0.05, 0.3, 2.5])  # the last is beyond a service's patience
        noticed = [proxy.episode(kind, seconds, delay_s) for proxy in chosen]
        if any(await asyncio.gather(*noticed)):
            self.campaign.result.server_faults[kind] += 1

    async def quiet_tail(self, last: int = TAIL) -> Tail:
        return await quiet_tail(self.server.url, self.proxies, last)

    async def run(self, seconds: float, *works: Work) -> Result:
        usual = [self.campaign.kill, self.campaign.stop, self.campaign.kill_trainer]
        return await self.campaign.run(
            seconds, *usual, self.kill, self.freeze, self.disturb, *works
        )


@asynccontextmanager
async def sharing(
    name: str,
    folder: Path,
    rng: Random,
    server: RedisServer | PostgresServer,
    disk: Disk | None = None,
) -> AsyncIterator[Shared]:
    """Three services and a trainer, which run once the campaign does."""
    proxies = [Proxy(server.port) for _ in SERVICES]
    await asyncio.to_thread(server.start)
    try:
        for proxy in proxies:
            await proxy.start()
        urls = [server.url_at(proxy.port) for proxy in proxies]
        replicas = [Replica(own, folder, url) for own, url in zip(SERVICES, urls, strict=True)]
        training = trainer(folder, urls[0], replicas[0].url)
        campaign = Campaign(name, folder, server.url, replicas, training, rng)
        yield Shared(campaign, server, proxies, disk)
    finally:
        for proxy in proxies:
            await proxy.close()
        server.kill()


async def on_redis(folder: Path, seconds: float, keep_stores: bool, rng: Random) -> Result:
    """Redis: services, trainer and Redis are killed, and the traffic between them fails."""
    place, disk, because = power(folder)
    redis = RedisServer(place, tcp=True, environment=disk.environment if disk else {})
    async with sharing("redis", folder, rng, redis, disk) as shared:
        shared.campaign.result.shim_because = because
        losses = [partial(lose_tail, shared, redis), partial(empty, shared, redis)]
        return await shared.run(seconds, *([] if keep_stores else losses))


async def on_postgres(folder: Path, seconds: float, keep_stores: bool, rng: Random) -> Result:
    """The same on PostgreSQL, without losses of power."""
    with postgres_server(folder / "postgres.log") as postgres:
        async with sharing("postgres", folder, rng, postgres) as shared:
            losses = [partial(fall_back, shared, postgres)]
            return await shared.run(seconds, *([] if keep_stores else losses))


async def lose_tail(shared: Shared, redis: RedisServer) -> None:
    """Redis comes back without the last of what it had."""

    async def cut(change: Callable[[], None]) -> None:
        redis.kill()
        file = append_only_file(redis.folder)
        await cut_tail(redis.url, [file], change, redis.start, redis.kill)

    def change() -> None:
        cut_append_only(append_only_file(redis.folder), shared.campaign.rng)
        if shared.disk is not None:
            shared.disk.adopt()  # else the next loss of power brings back what is cut

    await shared.campaign.rest()
    await _lose(shared, "append-only file cut", lambda: cut(change))


async def fall_back(shared: Shared, postgres: PostgresServer) -> None:
    """PostgreSQL fails over to a standby that lags."""
    await shared.campaign.rest()
    standby = await asyncio.to_thread(postgres.copy)
    await shared.campaign.load.progress(PROGRESS, PROGRESS_S)
    await _lose(shared, "standby that lags", lambda: asyncio.to_thread(postgres.replace, standby))


async def _lose(shared: Shared, what: str, lose: Callable[[], Awaitable[None]]) -> None:
    """The log loses its end, while services go on, or are killed or stopped."""
    campaign, replicas = shared.campaign, shared.campaign.replicas
    how = campaign.rng.choice(("alive", "alive", "killed", "stopped"))
    async with campaign.alone:
        with (
            campaign.losing(f"{what}, services {how}"),
            held(replicas if how != "alive" else []),
        ):
            if how == "stopped":
                await campaign.stopped(replicas)
            elif how == "killed":
                for replica in replicas:
                    replica.kill()
            with frozen(replicas):
                before = await shared.quiet_tail()
                await lose()
                gone = before.after(await read_tail(shared.server.url))
    await campaign.recovered(replace(gone, watched=how == "alive"))


async def empty(shared: Shared, redis: RedisServer) -> None:
    """Redis loses everything under the services; an earlier copy is restored."""
    campaign = shared.campaign
    await asyncio.sleep(campaign.rng.uniform(10.0, 40.0))
    async with campaign.alone:
        copy = await asyncio.to_thread(dump_redis, redis.url)
        await campaign.load.progress(PROGRESS, PROGRESS_S)
        await campaign.all_ready()
        with held(campaign.replicas):
            if not await campaign.are_ready():  # one that starts on an empty store begins anew
                return
            with campaign.losing("Redis emptied"):
                with frozen(campaign.replicas):
                    before = await shared.quiet_tail(SINCE_COPY)
                    redis.command("FLUSHALL")
                for replica in campaign.replicas:
                    await campaign.expect_failed("Redis was emptied", replica.positions)
                for replica in campaign.replicas:
                    replica.kill()
                strays = await read_tail(redis.url, SINCE_COPY)  # written before anybody noticed
                await asyncio.to_thread(restore_redis, redis.url, copy)
                cut = before.after(await read_tail(redis.url, SINCE_COPY))
                cut.rows |= {row.id for row in strays.rows}
                campaign.cuts.append(cut)
        await campaign.all_ready()
