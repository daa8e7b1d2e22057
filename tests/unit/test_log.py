"""A log that is recovered, follows other replicas, tells changes and closes."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

import service.log.replay
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import StoreUnavailable
from service.http.services import Services
from service.log.clock import LogClock
from service.log.committer import Committer
from service.log.replica import Replica
from service.log.stores.base import Append, MarkConflict, Record
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from service.state.events import AnyEvent, ChangeDetected, encode_event
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.support.service import virtual_services
from tests.unit.folding import Log, shop
from tests.unit.test_log_clock import NOON, Host


class Unhurried(MemoryStore):
    """Reading takes a while, as from a disk: others run meanwhile."""

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        return await super().read(experiment, after, limit)


def test_snapshots_that_fall_due_while_a_log_is_recovered_are_saved_on_the_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the recovery itself: two readers would fold each event twice, or find that the log had
    lost some."""
    log = Log()
    log.define(shop(linucb={"kind": "linucb"}))
    for _ in range(19):
        log.settle("linucb", {"toy1": 1.0})
    monkeypatch.setattr(service.log.replay, "PAGE", 3)

    async def run() -> None:
        store = Unhurried()
        entries = [Append("shop", encode_event(event), {}) for event, _ in log.records]
        await store.commit(entries)
        settings = Settings(store="memory://", snapshot_every_events=5)
        parts = virtual_services(settings, store).log
        with caplog.at_level(logging.ERROR):
            await parts.open()
        state = parts.replicas.state("shop")
        assert state is not None
        saved = await store.snapshots("shop")
        assert [each.position for each in saved] == [18, 12]  # a store keeps two
        for found in (state, *map(State.restore, saved)):
            for position in range(found.position, len(log.records)):
                found.apply(position + 1, log.records[position][0], None)
            assert found.snapshot() == log.state.snapshot()
        await parts.close()

    run_virtual(run())
    assert not caplog.records


class Silent(MemoryStore):
    """Shared; a replica learns by its own commits alone that others appended."""

    shared = True

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        await asyncio.Event().wait()


async def rewarded(services: Services) -> None:
    question = SelectRequest({"pet": "cat"}, experiment="shop", policy="linucb")
    token = (await services.selector.select(question)).token
    outcome = await services.settlements.reward(RewardRequest(token, 1.0))
    assert outcome.status == "accepted"


def test_a_replica_folds_what_another_appended_before_its_own_event() -> None:
    async def run() -> list[int]:
        store = Silent()
        one, other = (virtual_services(Settings(store="memory://"), store) for _ in range(2))
        async with AsyncExitStack() as stack:
            for services in (one, other):
                await services.log.open()
                stack.push_async_callback(services.log.close)
            linucb = {"kind": "linucb", "features": ["pet x kind"]}
            await one.admin.define("shop", Definition.model_validate(shop(linucb=linucb)), "")
            await other.log.replicas.join("shop")
            for services in (one, one, other):
                await rewarded(services)
            states = [each.log.replicas.states["shop"] for each in (one, other)]
            return [state.learners["linucb"].rewards for state in states]

    assert run_virtual(run()) == [2, 3]


def test_a_change_has_a_new_date_once_a_clock_that_the_store_refused_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one event would take log time, and every replica, three hours ahead."""
    host, logged = Host(NOON + 10_800.0), list[float]()

    class Refusing(Committer):
        def __init__(self) -> None: ...

        async def append(self, entry: Append, event: AnyEvent) -> MarkConflict:
            logged.append(event.at)
            if len(logged) == 1:
                host.wall, host.steady = NOON, 1.0
                raise StoreUnavailable("the clocks differ")
            return MarkConflict({})

    monkeypatch.setattr("service.log.upkeep.RETRY_SECONDS", 0.0)
    clock, replica = LogClock(host), Replica(MemoryStore(), State("shop"))
    event = ChangeDetected(
        at=clock.now(replica.state),
        policy="p",
        born=1,
        number=1,
        stratum="all",
        columns=[],
        since=1,
        schema_version=1,
    )

    async def run() -> None:
        upkeep = virtual_services(Settings(store="memory://"), Silent()).log.upkeep
        upkeep._committer, upkeep._clock = Refusing(), clock
        await upkeep._log(replica, "change/p/1/1", event)

    run_virtual(run())
    assert logged == [NOON + 10_800.0, pytest.approx(NOON)]


def test_close_ends_also_where_a_cancellation_is_swallowed() -> None:
    """As asyncio.wait_for of Python 3.11 does, in redis-py, where its work ends at that moment."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    async def run() -> None:
        log = virtual_services(Settings(store="memory://"), MemoryStore()).log
        await log.open()
        log.background.spawn(stubborn())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await log.close()

    run_virtual(run())
    assert swallowed == 2
