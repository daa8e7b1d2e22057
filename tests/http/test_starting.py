"""A service that recovers its log answers probes, and snapshots let a killed start go on later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from service.app import open_store_services, start
from service.errors import StoreUnavailable
from service.http.application import create_app
from service.http.services import Services
from service.log import replay
from service.log.recovery import SNAPSHOT_SECONDS
from service.log.stores.base import Record
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from tests.support.clock import VirtualClock, clock_of_loop, run_virtual
from tests.support.keys import Keys
from tests.support.service import (
    SHOP,
    URL,
    declared,
    expect_declared,
    expect_problem,
    serving,
)

PAGE = 5
EVENTS = 43


class Halting(MemoryStore):
    """Halts reads of events after a position: they wait for `go_on`, or fail.

    reads    positions after which events were read
    halted   set while a read waits
    """

    def __init__(self) -> None:
        super().__init__()
        self.halt_after: int | None = None
        self.fails = False
        self.seconds = 0.0
        self.go_on, self.halted = asyncio.Event(), asyncio.Event()
        self.reads = list[int]()

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        self.reads.append(after)
        clock_of_loop().skip(self.seconds)
        if self.halt_after is not None and after >= self.halt_after:
            if self.fails:
                raise StoreUnavailable("killed")
            self.halted.set()
            await self.go_on.wait()
        return await super().read(experiment, after, limit)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Halting:
    """A log without a snapshot, which is read in small pages."""
    monkeypatch.setattr(replay, "PAGE", PAGE)
    store = Halting()
    with serving(store) as wire:
        wire.teach(EVENTS - 1)
        wire.run(wire.services.log.replicas.by_name["shop"].fold_to_end())
        events = wire.services.log.replicas.states["shop"].position
    assert events == EVENTS
    store._experiments["shop"].snapshots.clear()  # the snapshot of its end
    store.reads.clear()
    return store


@asynccontextmanager
async def starting(
    store: Halting, **settings: object
) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    chosen = Settings.model_validate(
        {"store": "memory://", "experiments": [SHOP], "allowed_hosts": ["forage"], **settings}
    )
    clock = clock_of_loop()
    async with open_store_services(chosen, store, clock=clock, rng=clock.rng) as services:
        transport = httpx.ASGITransport(create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            yield services, client


async def halted(store: Halting, services: Services, position: int) -> "asyncio.Task[None]":
    """Start until the log is folded up to a position."""
    store.halt_after = position
    starts = asyncio.create_task(start(services))
    await store.halted.wait()
    return starts


def test_probes_are_answered_while_the_log_is_folded_and_nothing_else(store: Halting) -> None:
    async def ask() -> None:
        async with starting(store) as (services, client):
            starts = await halted(store, services, 20)
            health = await client.get("/healthz")
            assert (health.status_code, health.json()["status"]) == (200, "starting")
            ready = await client.get("/readyz")
            assert ready.status_code == 503
            assert ready.json() == {
                "ready": False,
                "reason": "starting",
                "recovering": {"experiment": "shop", "position": 20, "of": EVENTS},
                "positions": {},
            }
            for method, path in (
                *(("POST", path) for path in ("/select", "/reward", "/select/batch", "/select/")),
                *(("GET", path) for path in ("/experiments", "/metrics", "/", "/arms", "/none")),
            ):
                answer = await client.request(method, path)
                if declared(method, path) is not None:
                    expect_declared(answer)
                assert expect_problem(answer, 503)["type"].endswith("/starting")
                assert answer.headers["retry-after"] == "1"
            store.go_on.set()
            await starts
            ready = await client.get("/readyz")
            assert ready.status_code == 200
            assert ready.json() == {
                "ready": True,
                "reason": None,
                "recovering": None,
                "positions": {"shop": EVENTS},
            }
            body = {"context": {"persona": "cat"}}
            assert (await client.post("/select", json=body)).status_code == 200

    run_virtual(ask())


def test_progress_names_no_experiment_to_one_without_its_key(store: Halting, keys: Keys) -> None:
    async def ask() -> None:
        async with starting(store, keys=keys.path) as (services, client):
            starts = await halted(store, services, 20)
            ready = (await client.get("/readyz")).json()
            assert ready["recovering"] is None
            store.go_on.set()
            await starts

    run_virtual(ask())


def snapshots(store: Halting) -> list[int]:
    async def positions() -> list[int]:
        return sorted(each.position for each in await store.snapshots("shop"))

    return run_virtual(positions())


async def killed(store: Halting, at: int, **settings: object) -> None:
    """Start, and fail once the log is folded up to a position; nothing is saved on the way down."""
    store.halt_after, store.fails = at, True
    async with starting(store, **settings) as (services, _):
        with pytest.raises(StoreUnavailable):
            await start(services)
    store.halt_after = None


def test_a_killed_start_leaves_a_snapshot_from_which_the_next_goes_on(store: Halting) -> None:
    run_virtual(killed(store, 30, snapshot_every_events=10))
    assert max(snapshots(store)) == 30
    store.reads.clear()
    with serving(store) as wire:
        assert min(store.reads) == 29  # the last folded event is read again
        assert wire.rewards() == EVENTS - 1


def test_a_slow_start_saves_snapshots_by_time(store: Halting) -> None:
    clock = VirtualClock()
    store.seconds = SNAPSHOT_SECONDS / 2 + 0.1
    run_virtual(killed(store, 30), clock)
    assert max(snapshots(store)) >= 20


def test_a_quick_start_saves_none(store: Halting) -> None:
    run_virtual(killed(store, 40))
    assert snapshots(store) == []


def test_what_is_recovered_in_parts_equals_the_whole(store: Halting) -> None:
    with serving(store) as wire:
        whole = wire.policy("linucb")
    store._experiments["shop"].snapshots.clear()
    for at in (15, 30):
        run_virtual(killed(store, at, snapshot_every_events=5))
    with serving(store) as wire:
        assert wire.policy("linucb") == whole
