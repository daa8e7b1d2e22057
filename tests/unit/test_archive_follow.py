"""An archive that is kept up to date beside a service, and what the service is told of it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from service.errors import LogGap, StoreUnavailable
from service.log.stores import Store
from service.log.stores.base import Record
from service.log.stores.memory import MemoryStore
from service.maintenance.archive.archiver import MARGIN_S, Sizes
from service.maintenance.archive.export import ArchiveFollower, ServiceReport
from tests.unit.archived import (
    DAY_S,
    LATER_S,
    MORNING,
    SHOP,
    Shop,
    a_decision,
    export,
    ids_of,
    names_of,
)

Handler = Callable[[httpx.Request], httpx.Response]


class Service:
    """The route of a service that takes what readers say. away: it is not there."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int, int]] = []
        self.away = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("nobody there", request=request)
        said = json.loads(request.content)
        assert request.method == "PUT"
        self.taken.append((request.url.path, said["position"], said["row"]))
        return httpx.Response(204)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self))


def follower_of(
    store: Store, path: Path, service: Service | None = None, sizes: Sizes | None = None
) -> ArchiveFollower:
    path.mkdir(exist_ok=True)
    report = ServiceReport((service or Service()).client(), "http://forage/")
    return ArchiveFollower(store, path, report, None, sizes or Sizes(), clock=lambda: 4e9)


def test_the_service_is_told_at_the_start_and_after_each_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop, service = Shop(MemoryStore()), Service()
        await shop.define()
        follower = follower_of(shop.store, tmp_path, service, Sizes(part_rows=1))
        await follower.round()
        path = "/experiments/shop/readers/archive"
        assert service.taken == [(path, 0, 0), (path, 1, 0)]
        await shop.decide(a_decision(1))
        await follower.round()
        assert service.taken[2:] == []  # nothing durable has changed
        await shop.pass_until(MORNING + LATER_S)
        await follower.round()
        assert service.taken[2:] == [(path, 2, 1)]
        follower.close()

        again = follower_of(shop.store, tmp_path, service)
        await again.round()
        assert service.taken[3:] == [(path, 2, 1)]
        again.close()

    asyncio.run(scenario())


def test_a_service_that_is_away_is_missed_once_and_told_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        shop, service = Shop(MemoryStore()), Service()
        await shop.define()
        service.away = True
        follower = follower_of(shop.store, tmp_path, service, Sizes(part_rows=1))
        await shop.decide(a_decision(1))
        await shop.pass_until(MORNING + LATER_S)
        for _ in range(3):
            await follower.round()
        assert ids_of(tmp_path) == [a_decision(1).id]
        assert caplog.text.count("the service is not told how far the archive of shop is") == 1
        service.away = False
        await follower.round()
        assert [(position, row) for _, position, row in service.taken] == [(2, 1)]
        follower.close()

    asyncio.run(scenario())


def test_a_service_that_refuses_one_experiment_is_said_once_and_told_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Service):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            super().__call__(request)
            return httpx.Response(404 if "shop" in request.url.path else 204)

    async def scenario() -> None:
        store, service = MemoryStore(), Refusing()
        for name in ("shop", "zoo"):
            shop = Shop(store, name)
            await shop.define()
            await shop.decide(a_decision(1))
            await shop.pass_until(MORNING + LATER_S)
        follower = follower_of(store, tmp_path, service, Sizes(part_rows=1))
        for _ in range(3):
            await follower.round()
        assert len(ids_of(tmp_path)) == 2
        assert caplog.text.count("is not told") == 1
        told = [(position, row) for path, position, row in service.taken if "zoo" in path]
        assert told == [(0, 0), (2, 1)]
        follower.close()

    asyncio.run(scenario())


def test_a_part_is_written_when_it_is_full_or_its_day_is_over_or_some_time_has_passed(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        shop = Shop(MemoryStore())
        await shop.define()
        follower = follower_of(shop.store, tmp_path, sizes=Sizes(part_rows=200))
        for number in range(1, 251):
            await shop.decide(a_decision(number))
        await shop.pass_until(MORNING + LATER_S)
        await follower.round()
        assert names_of(tmp_path) == ["day=2026-01-01/part-000000000001.parquet"]  # full
        assert len(ids_of(tmp_path)) == 200

        midnight = MORNING + 14 * 3_600.0
        await shop.decide(a_decision(251, midnight + MARGIN_S - 1.0))
        await shop.pass_until(midnight + MARGIN_S + LATER_S)
        await follower.round()
        assert len(ids_of(tmp_path)) == 200  # rows of the day before may still come
        await shop.decide(a_decision(252, midnight + MARGIN_S + 1.0))
        await shop.pass_until(midnight + MARGIN_S + LATER_S + 2.0)
        await follower.round()
        assert len(ids_of(tmp_path)) == 252
        follower.close()

        at = midnight + DAY_S / 2
        await shop.decide(a_decision(253, at))
        await shop.pass_until(at + LATER_S)
        patient = follower_of(shop.store, tmp_path)
        await patient.round()
        await patient.round()
        patient.close()
        assert len(ids_of(tmp_path)) == 252
        hasty = follower_of(shop.store, tmp_path, sizes=Sizes(part_seconds=0.0))
        await hasty.round()
        hasty.close()
        assert len(ids_of(tmp_path)) == 253

    asyncio.run(scenario())
    assert all(each.name.endswith(".parquet") for each in tmp_path.glob("*/*/*"))


def test_a_follower_keeps_final_rows_alone(tmp_path: Path) -> None:
    """What a run without --follow wrote that was not final would be there twice."""

    async def scenario() -> None:
        shop = Shop(MemoryStore())
        await shop.define()
        await shop.decide(a_decision(1))
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path, final=False) == [a_decision(1).id]
        follower = follower_of(shop.store, tmp_path)
        await follower.round()
        assert names_of(tmp_path) == []
        follower.close()

    asyncio.run(scenario())


def test_an_experiment_that_comes_later_is_archived_as_well(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        follower = follower_of(store, tmp_path, sizes=Sizes(part_rows=1))
        await follower.round()
        for name in ("shop", "zoo"):
            shop = Shop(store, name)
            await shop.define()
            await shop.decide(a_decision(len(name)))
            await shop.pass_until(MORNING + LATER_S)
            await follower.round()
        follower.close()

    asyncio.run(scenario())
    found = sorted(each.parts[-3] for each in tmp_path.rglob("*.parquet"))
    assert found == ["experiment=shop", "experiment=zoo"]


def test_a_store_that_is_gone_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone(MemoryStore):
        gone = False

        async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
            if self.gone:
                raise StoreUnavailable("the host is away")
            return await super().read(experiment, after, limit)

    async def scenario() -> None:
        store = Gone()
        shop = Shop(store)
        await shop.define()
        follower = follower_of(store, tmp_path, sizes=Sizes(part_rows=201))
        for number in range(1, 201):
            await shop.decide(a_decision(number))
        await shop.pass_until(MORNING + LATER_S)
        await follower.round()  # 200 rows wait for one more
        await shop.decide(a_decision(201))
        store.gone = True
        await follower.round()
        await follower.round()
        assert caplog.text.count("trying again: the host is away") == 1
        assert ids_of(tmp_path) == []
        store.gone = False
        await follower.round()
        assert len(ids_of(tmp_path)) == 201
        follower.close()

    asyncio.run(scenario())


def test_a_log_that_lost_what_is_archived_ends_the_follower(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        shop = Shop(store)
        await shop.define()
        await shop.pass_until(MORNING)
        follower = follower_of(store, tmp_path)
        await follower.round()
        del store._experiments[SHOP].events[2]
        store._experiments[SHOP].position = 1
        await shop.pass_until(MORNING + 1.0)
        with pytest.raises(LogGap, match="another event at position 2"):
            await follower.round()
        follower.close()

    asyncio.run(scenario())
