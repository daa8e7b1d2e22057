"""A backup that is taken while a service decides, learns and expires without pause: what it holds
is of one instant, and what is restored from it goes on from there."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.app import assemble
from service.decide.select import Answer
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log import reading
from service.log.stores import Store, open_store
from service.offline import backup as backups
from service.offline.audit import audit_store
from service.offline.backup import backup, restore
from service.offline.copying import Copied
from service.settings import Settings
from service.settle.marks import activation_mark, arm_mark, read_arm
from service.state.decisions import decode_decision
from service.state.events import decode_event, settlements_of
from service.state.fold import State
from tests.support.stores import marks_of
from tests.unit.folding import bits, shop

pytestmark = pytest.mark.process

POLICIES = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints", "draws": 16, "learns_from": "all"},
    "random": {"kind": "random"},
}
WAIT_S = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/forage.db"


@dataclass
class Shop:
    """A service that has a visit after another. Every tenth is of each of these kinds: rewarded,
    expired, left open, deferred, activated, activated and rewarded."""

    services: Services
    rewarded: list[tuple[Answer, float]] = field(default_factory=list)
    visits: int = 0
    stopped: bool = False

    async def visit(self) -> None:
        services, kind = self.services, self.visits % 10
        state = services.log.replicas.states["shop"]
        deferred = kind in (7, 8, 9)
        answer = await services.selector.select(SelectRequest({"pet": "cat"}, deferred=deferred))
        if kind in (8, 9):
            await services.settlements.activate(answer.decision.id, None)
        if kind == 5:
            await services.expiry.expire(state, answer.decision)
        if kind in (0, 1, 2, 3, 4, 9):
            reward = float(kind % 2)
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))
            self.rewarded.append((answer, reward))
        self.visits += 1

    async def open_all_day(self) -> None:
        while not self.stopped:
            await self.visit()


async def opened(url: str) -> Services:
    chosen = Settings(store=url, snapshot_every_events=40)
    store = open_store(url)
    await store.open()
    services = assemble(chosen, store, [await store.secret()])
    await services.log.open()
    return services


async def served(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Shop, Copied]:
    """A service, and a backup of its store in another thread, each step of which waits until a
    visit has passed."""
    monkeypatch.setattr(reading, "SAY_SECONDS", 0.0)
    monkeypatch.setattr(backups, "PAGES_PER_STEP", 8)
    services = await opened(url)
    await services.admin.define("shop", Definition.model_validate(shop(**POLICIES)), "")
    day = Shop(services)
    for _ in range(200):
        await day.visit()

    def wait_for_a_visit(line: str) -> None:
        before, pause = day.visits, threading.Event()
        while day.visits == before and not day.stopped:
            pause.wait(0.001)

    working = asyncio.create_task(day.open_all_day())
    taking = asyncio.to_thread(backup, url, path, wait_for_a_visit)
    try:
        [copied] = await asyncio.wait_for(taking, WAIT_S)
    finally:
        day.stopped = True
        await working
    for _ in range(10):
        await day.visit()
    return day, copied


async def folded(store: Store, upto: int) -> State:
    state = State("shop")
    for record in await store.read("shop", 0, upto):
        state.apply(record.position, decode_event(record.payload))
    return state


async def expect_as_at(source: Store, held: Store, position: int) -> None:
    """What a copy holds is what the source held when its last event was at `position`."""
    assert await held.read("shop", 0, 10_000) == await source.read("shop", 0, position)
    assert bits(await folded(held, position)) == bits(await folded(source, position))
    marks, all_marks = await marks_of(held, "shop"), await marks_of(source, "shop")
    of_events = {i for i, mark in all_marks.items() if 0 < mark.position <= position}
    assert {i for i, mark in marks.items() if mark.position > 0} == of_events
    assert {mark.position for mark in marks.values()} >= set(range(1, position + 1))
    assert [each.position <= position for each in await held.snapshots("shop")] == [True, True]


async def expect_nothing_forgotten(held: Store) -> None:
    """Due is what was shown and is not settled, all of it and nothing else."""
    events = [decode_event(record.payload) for record in await held.read("shop", 0, 10_000)]
    settled = {one.decision for event in events for one in settlements_of(event)}
    marks = await marks_of(held, "shop")
    waiting = {}
    for kept in await held.decisions("shop", 0, 10_000):
        row = decode_decision(kept.payload)
        if row.id not in settled and (not row.deferred or activation_mark(row.id) in marks):
            waiting[row.id] = row.reward_by
    instant = await held.describe("shop", whole=True)
    assert instant.due == waiting
    assert sum(instant.counts.values()) == len(await held.decisions("shop", 0, 10_000))


async def expect_retries(source: Store, restored: Services, day: Shop, position: int) -> None:
    """A reward that was acknowledged before the instant is a duplicate, a later one is news; but of
    a decision that was activated later, which has to be said again as well."""
    statuses = {"duplicate": 0, "accepted": 0}
    for answer, reward in day.rewarded:
        mark = arm_mark(answer.decision.id, answer.decision.shown[0].arm)
        [known] = (await source.marks("shop", [mark])).values()
        before = (read_arm(known).since or known.position) <= position
        if answer.decision.deferred and not before:
            continue
        outcome = await restored.settlements.reward(RewardRequest(answer.token, reward=reward))
        status = outcome.status
        assert status == ("duplicate" if before else "accepted")
        statuses[status] += 1
    assert min(statuses.values()) > 10


def test_a_backup_is_of_one_instant_while_a_service_serves(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = tmp_path / "backup.db", f"sqlite:///{tmp_path}/restored.db"

    async def scenario() -> None:
        day, copied = await served(url, path, monkeypatch)
        source = day.services.store
        log_end = day.services.log.replicas.states["shop"].position
        assert 100 < copied.position < log_end - 10
        [found] = await audit_store(f"sqlite:///{path}")
        assert (found.clean, found.decisions) == (True, copied.decisions)

        assert await asyncio.to_thread(restore, path, target) == [copied]
        held = open_store(target, readonly=True)
        await held.open()
        await expect_as_at(source, held, copied.position)
        await expect_nothing_forgotten(held)
        at_the_instant = bits(await folded(held, copied.position))
        await held.close()

        restored = await opened(target)
        assert bits(restored.log.replicas.states["shop"]) == at_the_instant
        await expect_retries(source, restored, day, copied.position)
        await Shop(restored).visit()
        for services in (restored, day.services):
            await services.log.close()
            await services.store.close()

    asyncio.run(scenario())
