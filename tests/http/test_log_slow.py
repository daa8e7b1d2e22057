"""The log is slow: a decision does not wait for it for long, and its row comes all the same."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from service.errors import StoreUnavailable
from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from tests.support.service import Wire, serving

WAIT_S = 0.1


class Slow(MemoryStore):
    """While not `free`, commits begin and do not end. Freed, they end, or fail where `fails`."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.free, self.begun = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        stuck = not self.free.is_set()
        self.begun.set()
        await self.free.wait()
        if stuck and self.fails:
            raise StoreUnavailable("no reply")
        return await super().commit(entries)


@pytest.fixture
def disk() -> Slow:
    return Slow()


@pytest.fixture
def wire(disk: Slow) -> Iterator[Wire]:
    with serving(disk, select_log_seconds=WAIT_S, buffer_decisions=5) as wire:
        yield wire
        disk.fails = False
        disk.free.set()


def test_a_decision_is_answered_and_its_row_comes_later(wire: Wire, disk: Slow) -> None:
    disk.free.clear()
    decision = wire.select(policy="linucb")
    assert decision["logged"] is False
    assert wire.metrics()["forage_degraded"] == 0
    disk.free.set()
    wire.until(lambda: wire.get(f"/decisions/{decision['id']}").status_code == 200)
    assert wire.policy("linucb")["decisions"] == 1
    assert wire.select()["logged"] is True
    assert wire.services.journal.buffered == 0


def test_only_the_first_waits(wire: Wire, disk: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.free.clear()
    assert wire.select()["logged"] is False
    buffer = wire.services.journal._writer._buffer
    monkeypatch.setattr(buffer, "set_deadline", lambda pending: pytest.fail("waits"))
    assert not any(wire.select()["logged"] for _ in range(20))


def test_what_waited_is_written_once_where_the_commit_fails(wire: Wire, disk: Slow) -> None:
    disk.fails = True
    disk.free.clear()
    decisions = [wire.select(policy="linucb") for _ in range(3)]
    disk.free.set()
    for decision in decisions:
        path = f"/decisions/{decision['id']}"
        wire.until(lambda: wire.get(path).status_code == 200)  # noqa: B023
    wire.until(lambda: not wire.services.journal.degraded)
    for decision in decisions:
        assert wire.reward(decision, 1.0) == "accepted"
    assert wire.policy("linucb")["decisions"] == 3
    assert wire.metrics()["forage_lost_decisions_total"] == 0


def test_what_is_asked_beyond_the_buffer_is_lost_and_counted(wire: Wire, disk: Slow) -> None:
    disk.free.clear()
    decisions = [wire.select() for _ in range(8)]
    assert wire.metrics()["forage_lost_decisions_total"] == 3
    disk.free.set()
    wire.until(lambda: wire.get(f"/decisions/{decisions[4]['id']}").status_code == 200)
    found = [wire.get(f"/decisions/{decision['id']}").status_code for decision in decisions]
    assert found == [200] * 5 + [404] * 3


def test_a_key_holds_meanwhile(wire: Wire, disk: Slow) -> None:
    disk.free.clear()
    body, headers = {"context": {"persona": "cat"}}, {"Idempotency-Key": "k"}
    first, again = (wire.post("/select", body, headers=headers).json() for _ in range(2))
    assert (first["id"], first["arm"]) == (again["id"], again["arm"])
    disk.free.set()
    wire.until(lambda: wire.get(f"/decisions/{first['id']}").status_code == 200)
    later = wire.post("/select", body, headers=headers).json()
    assert (later["id"], later["arm"], later["logged"]) == (first["id"], first["arm"], True)


def test_the_row_of_a_request_that_went_away_is_not_lost(
    wire: Wire, disk: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fails = True
    disk.free.clear()
    disk.begun.clear()

    async def ask_and_go() -> None:
        body = {"context": {"persona": "cat"}, "policy": "linucb"}
        asking = asyncio.create_task(wire.client.post("/select", json=body))
        await disk.begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        disk.free.set()

    wire.run(ask_and_go())
    wire.until(lambda: wire.policy("linucb")["decisions"] == 1)
    assert not [record for record in caplog.records if "never retrieved" in record.message]


def test_a_reward_waits_for_the_log(wire: Wire, disk: Slow) -> None:
    decision = wire.select(policy="linucb")
    disk.free.clear()
    disk.begun.clear()

    async def reward_and_free() -> str:
        body = {"decision_id": decision["decision_id"], "reward": 1.0}
        waiting = asyncio.create_task(wire.client.post("/reward", json=body))
        await disk.begun.wait()
        assert not waiting.done()
        disk.free.set()
        status: str = (await waiting).json()["status"]
        return status

    assert wire.run(reward_and_free()) == "accepted"
