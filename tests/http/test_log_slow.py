"""The log is slow: a decision waits for it briefly, and its row is written later."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.service import Json, Wire, expect_problem, serving
from tests.support.stores import SlowDisk

BUFFER_BYTES = 3_000
"""Room for five decisions of the shop, and not for six."""

BODY = {"context": {"persona": "cat"}, "policy": "linucb"}


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def wire(disk: SlowDisk) -> Iterator[Wire]:
    with serving(disk, select_log_seconds=0.1, buffer_bytes=BUFFER_BYTES) as wire:
        yield wire
        disk.fails = False
        disk.free.set()


def until_logged(wire: Wire, *decisions: Json) -> None:
    paths = [f"/decisions/{decision['id']}" for decision in decisions]
    wire.until(lambda: all(wire.get(path).status_code == 200 for path in paths))


def test_only_the_first_decision_waits_and_the_rows_come_later(
    wire: Wire, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.free.clear()
    decision = wire.select(policy="linucb")
    assert decision["logged"] is False
    assert wire.metrics()["forage_degraded"] == 0
    committer = wire.services.log.committer
    monkeypatch.setattr(committer, "_set_alarm", lambda deadline: pytest.fail("waits"))
    more = [wire.select(policy="linucb") for _ in range(7)]
    assert not any(each["logged"] for each in more)
    assert wire.metrics()["forage_lost_decisions_total"] == 3  # beyond the buffer
    monkeypatch.undo()
    disk.free.set()
    until_logged(wire, decision, *more[:4])
    for lost in more[4:]:
        expect_problem(wire.get(f"/decisions/{lost['id']}"), 404)
    assert wire.policy("linucb")["decisions"] == 5
    assert wire.select()["logged"] is True
    assert wire.services.log.committer.buffered == 0


def test_waiting_rows_are_written_once_where_the_commit_fails(wire: Wire, disk: SlowDisk) -> None:
    disk.fails = True
    disk.free.clear()
    decisions = [wire.select(policy="linucb") for _ in range(3)]
    disk.free.set()
    until_logged(wire, *decisions)
    wire.until(lambda: not wire.services.log.committer.degraded)
    assert {wire.reward(decision, 1.0) for decision in decisions} == {"accepted"}
    assert wire.policy("linucb")["decisions"] == 3
    assert wire.metrics()["forage_lost_decisions_total"] == 0


def test_a_key_holds_meanwhile(wire: Wire, disk: SlowDisk) -> None:
    def asked() -> Json:
        decision: Json = wire.post("/select", BODY, headers={"Idempotency-Key": "k"}).json()
        return decision

    disk.free.clear()
    first, again = asked(), asked()
    assert (first["id"], first["arm"]) == (again["id"], again["arm"])
    disk.free.set()
    until_logged(wire, first)
    later = asked()
    assert (later["id"], later["arm"], later["logged"]) == (first["id"], first["arm"], True)


def test_the_row_of_a_cancelled_request_is_not_lost(
    wire: Wire, disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fails = True
    disk.free.clear()
    disk.begun.clear()

    async def ask_and_go() -> None:
        asking = asyncio.create_task(wire.client.post("/select", json=BODY))
        await disk.begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        disk.free.set()

    wire.run(ask_and_go())
    wire.until(lambda: wire.policy("linucb")["decisions"] == 1)
    assert not [record for record in caplog.records if "never retrieved" in record.message]


def test_a_reward_waits_for_the_log(wire: Wire, disk: SlowDisk) -> None:
    body = {"decision_id": wire.select(policy="linucb")["decision_id"], "reward": 1.0}
    disk.free.clear()
    disk.begun.clear()

    async def reward_and_free() -> str:
        waiting = asyncio.create_task(wire.client.post("/reward", json=body))
        await disk.begun.wait()
        assert not waiting.done()
        disk.free.set()
        status: str = (await waiting).json()["status"]
        return status

    assert wire.run(reward_and_free()) == "accepted"
