"""DELETE /units/{unit}: all that the log holds of a unit goes, what was learned together stays."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import httpx
import pytest

from service.errors import StoreUnavailable
from service.log import committer
from service.log.stores import open_store
from service.log.stores.base import CommitResult, Entry, Erasure
from service.log.stores.memory import MemoryStore
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import RedisTimeouts
from service.settle.marks import ERASED, activation_mark, arm_mark, contribution_mark
from service.state.decisions import decode_decision, unit_of
from service.state.events import Erased, Tombstone, decode_event
from tests.support.clock import VirtualClock
from tests.support.redis_server import redis_server
from tests.support.service import Json, Wire, expect_problem, serving
from tests.support.stores import SlowDisk

WINDOWED = {"kind": "linucb", "window": 100}


def visit(wire: Wire, unit: str | None, reward: float | None = 1.0, **question: Any) -> Json:
    decision = wire.select(unit=unit, policy="linucb", **question)
    if reward is not None:
        wire.reward(decision, reward)
    return decision


def erase(wire: Wire, unit: str, **query: str) -> Json:
    answer = wire.delete(f"/units/{quote(unit, safe='')}", params=query)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()["erased"]
    return found


def expect_gone(wire: Wire, *decisions: Json) -> None:
    for decision in decisions:
        expect_problem(wire.get(f"/decisions/{decision['id']}"), 404)


def digest_of(wire: Wire) -> str:
    found: str = wire.policy("linucb")["head"]["digest"]
    return found


def events(wire: Wire) -> list[Any]:
    records = wire.run(wire.services.store.read("shop", 0, 1_000))
    return [decode_event(record.payload) for record in records]


def test_the_units_decisions_go_and_the_heads_sums_stay(wire: Wire) -> None:
    own = [visit(wire, "ann"), visit(wire, "ann", reward=None)]
    others = [visit(wire, "ben", reward=None), visit(wire, None)]
    before = digest_of(wire)
    assert erase(wire, "ann") == {"shop": {"decisions": 2, "events": 1}}
    assert digest_of(wire) == before
    expect_gone(wire, *own)
    for decision in others:
        assert wire.explain(decision)["id"] == decision["id"]
    assert wire.reward(others[0], 1.0) == "accepted"
    assert wire.metrics()['forage_erased_decisions_total{experiment="shop"}'] == 2
    stones = [event for event in events(wire) if isinstance(event, Tombstone)]
    assert [(stone.policy, stone.rewards) for stone in stones] == [("linucb", 1)]
    [erased] = [event.decisions for event in events(wire) if isinstance(event, Erased)]
    assert erased == [decision["id"] for decision in own]


def test_marks_of_activations_and_contributions_go_and_those_that_refuse_rewards_stay(
    wire: Wire,
) -> None:
    """A mark has the id of its decision; those of arms refuse what a page still sends."""
    wire.redefine(reward={"range": [0, 1], "aggregation": "sum", "total": [0, 9]})

    def marks_of(decision: Json) -> dict[str, str]:
        name, arm = decision["id"], decision["arm"]
        names = {
            "activation": activation_mark(name),
            "contribution": contribution_mark(name, arm, "click"),
            "arm": arm_mark(name, arm),
        }
        found = wire.run(wire.services.store.marks("shop", list(names.values())))
        return {what: found[mark].value for what, mark in names.items() if mark in found}

    own, other = (visit(wire, unit, None, deferred=True) for unit in ("ann", "ben"))
    for decision in (own, other):
        assert wire.post(f"/decisions/{decision['id']}/activate").status_code == 200
        assert wire.reward(decision, 1.0, reward_id="click") == "accepted"
    before = marks_of(other)
    assert marks_of(own).keys() == before.keys() == {"activation", "contribution", "arm"}
    erase(wire, "ann")
    assert marks_of(own) == {"arm": ERASED}
    assert marks_of(other) == before


@pytest.mark.parametrize("unit", ["two\nlines", "end\n", "\n", "a/b/", "/", "?#%2F", "..\n"])
def test_every_unit_that_a_body_takes_can_be_erased(wire: Wire, unit: str) -> None:
    visit(wire, unit)
    assert erase(wire, unit) == {"shop": {"decisions": 1, "events": 1}}


def test_erasing_again_or_an_unknown_unit_changes_nothing(wire: Wire) -> None:
    visit(wire, "ann")
    # a typo in `experiment` would erase from all of them
    problem = expect_problem(wire.delete("/units/ann", params={"experimnt": "other"}), 422)
    assert problem["errors"][0]["path"] == "experimnt"
    expect_problem(wire.delete("/units/ann", params={"experiment": "none"}), 404)
    assert erase(wire, "ann")["shop"]["decisions"] == 1
    position = wire.get("/readyz").json()["positions"]
    assert erase(wire, "ann") == {"shop": {"decisions": 0, "events": 0}}
    assert erase(wire, "nobody", experiment="shop") == {"shop": {"decisions": 0, "events": 0}}
    assert wire.get("/readyz").json()["positions"] == position


OLD, NEW = b"the old secret" * 2, b"the new secret" * 2


def test_an_erasure_under_an_unknown_secret_is_refused_until_the_secret_is_given() -> None:
    """The unit's rows of before cannot be told from others': `0 decisions` would be a lie."""
    store = MemoryStore()
    named = {"context": {"persona": "cat"}, "policy": "linucb"}
    with serving(store, token_keys=[OLD]) as wire:
        old = visit(wire, "ann")
        visit(wire, None)
    with serving(store, token_keys=[NEW]) as wire:
        new = wire.select(unit="ann", **named)
        problem = expect_problem(wire.delete("/units/ann"), 409)
        assert problem["type"].endswith("/unknown-secret")
        assert "1 decisions have units" in problem["detail"]
        assert "1 others were erased" in problem["detail"]
        assert "FORAGE_TOKEN_KEYS" in problem["detail"]
        expect_gone(wire, new)
        assert wire.explain(old)["id"] == old["id"]
    with serving(store, token_keys=[NEW, OLD]) as wire:
        assert erase(wire, "ann")["shop"] == {"decisions": 1, "events": 1}
    with serving(store, token_keys=[NEW]) as wire:  # nothing is left under the older secret
        assert erase(wire, "ann")["shop"] == {"decisions": 0, "events": 0}


def test_the_key_of_an_erased_decision_gets_another_that_counts_once() -> None:
    store = MemoryStore()
    body = {"context": {"persona": "cat"}, "unit": "ann", "policy": "linucb"}

    def select(wire: Wire) -> Json:
        answer = wire.post("/select", body, headers={"Idempotency-Key": "page-1"})
        found: Json = answer.json()
        return found

    with serving(store) as wire:
        earlier = list[Json]()
        for times in range(1, 4):
            decision = select(wire)
            assert decision["id"] not in [each["id"] for each in earlier]
            assert select(wire)["id"] == decision["id"]
            assert wire.reward(decision, 1.0) == "accepted"
            assert wire.reward(decision, 1.0) == "duplicate"
            assert wire.rewards() == times
            erase(wire, "ann")
            earlier.append(decision)
            for gone in earlier:
                wire.refuse(410, gone)
        last = select(wire)
    with serving(store) as wire:  # from a snapshot
        assert select(wire)["id"] == last["id"]
        assert wire.reward(last, 1.0) == "accepted"


def test_an_erased_decision_is_never_settled(clock: VirtualClock) -> None:
    """Neither again, nor otherwise, nor for the first time; and nothing expires."""
    with serving(clock=clock) as wire:
        wire.redefine(reward={"wait_seconds": 60, "accept_seconds": 600})
        rewarded, waiting = visit(wire, "ann"), visit(wire, "ann", reward=None)
        slate = wire.select(unit="ann", policy="linucb", top_k=2)
        wire.reward(slate, rewards={slate["ranking"][1]["arm"]: 1.0})
        assert erase(wire, "ann")["shop"]["decisions"] == 3
        wire.pass_by(60)
        for decision in (rewarded, waiting):
            for reward in (1.0, 0.0):
                wire.refuse(410, decision, reward)
        for place in slate["ranking"]:
            wire.refuse(410, slate, None, rewards={place["arm"]: 1.0})
        assert wire.rewards() == 2
        wire.redefine(reward={"aggregation": "sum", "range": [0, 1]})
        total = visit(wire, "ann", reward=None)
        wire.reward(total, 0.25, reward_id="order-0")
        erase(wire, "ann")
        for number in range(2):
            wire.refuse(410, total, 0.25, reward_id=f"order-{number}")


def test_a_start_from_the_origin_is_the_state_that_was() -> None:
    store = MemoryStore()
    with serving(store) as wire:
        for unit in ("ann", "ben", "ann", "cleo"):
            visit(wire, unit)
        erase(wire, "ann")
        visit(wire, "ben")
        before, position = digest_of(wire), wire.get("/readyz").json()["positions"]
    with serving(store) as wire:
        assert digest_of(wire) == before
        assert wire.get("/readyz").json()["positions"] == position
        assert wire.rewards() == 5
    kept = store._experiments["shop"]
    assert kept.origin is not None
    kept.snapshots = {at: one for at, one in kept.snapshots.items() if at <= kept.origin.position}
    with serving(store) as wire:  # the origin and the events after it
        assert digest_of(wire) == before


def test_memories_of_windows_forget_the_unit(wire: Wire) -> None:
    """A head over the last settlements holds each of them."""
    wire.redefine(policies={"linucb": WINDOWED})
    ann, ben = visit(wire, "ann"), visit(wire, "ben")
    memory = wire.services.log.replicas.states["shop"].learners["linucb"].active.memory
    assert memory is not None
    assert memory.keys == [ann["id"], ben["id"]]
    erase(wire, "ann")
    assert memory.keys == [ben["id"]]


def test_a_deleted_experiments_log_is_searched_too(wire: Wire) -> None:
    visit(wire, "ann")
    wire.delete("/experiments/shop")
    assert erase(wire, "ann") == {"shop": {"decisions": 1, "events": 1}}


def test_decisions_that_wait_in_memory_go_too(wire: Wire) -> None:
    """Nor can they be settled: their tokens hold all that a reward needs."""
    writer = wire.services.log.committer
    writer.degraded = True
    waiting = wire.select(unit="ann", policy="linucb")
    writer.degraded = False
    assert not waiting["logged"]
    erase(wire, "ann")
    assert wire.services.log.committer.buffered == 0
    wire.refuse(410, waiting)


class Distant(MemoryStore):
    """A commit takes its time, and reads none."""

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        await asyncio.sleep(0.01)
        return await super().commit(entries)


def test_decisions_on_their_way_out_of_memory_go_too() -> None:
    """They were made while the log was gone. It is back, and takes them in several commits."""
    with serving(Distant()) as wire, mock.patch.object(committer, "DRAINED_BYTES", 1):
        writer = wire.services.log.committer
        writer.degraded = True
        waiting = [wire.select(unit=unit, policy="linucb") for unit in ("ben", "eve", "ann")]
        writer.degraded = False
        assert erase(wire, "ann") == {"shop": {"decisions": 1, "events": 0}}
        wire.sleep(1.0)
        expect_gone(wire, waiting[2])
        wire.refuse(410, waiting[2])


def test_decisions_on_their_way_into_a_slow_log_go_too() -> None:
    store = SlowDisk()
    with serving(store, select_log_seconds=0.05) as wire:
        store.free.clear()
        waiting = wire.select(unit="ann", policy="linucb")
        assert not waiting["logged"]

        async def erase_and_let() -> httpx.Response:
            erasing = asyncio.create_task(wire.client.delete("/units/ann"))
            for _ in range(20):
                await asyncio.sleep(0)
            store.free.set()
            return await erasing

        assert wire.run(erase_and_let()).json()["erased"]["shop"]["decisions"] == 1
        expect_gone(wire, waiting)


class Broken(MemoryStore):
    """broken: what is erased is kept, and the answer lost, once `whole` parts are done.

    dirty: its files cannot be cleaned"""

    broken = dirty = False
    whole = 0

    async def erase(self, experiment: str, erasure: Erasure) -> None:
        if self.broken and not self.whole:
            raise StoreUnavailable("the connection was cut")
        self.whole -= self.broken
        await super().erase(experiment, erasure)

    async def scrub(self) -> None:
        if self.dirty:
            raise StoreUnavailable("a reader holds the log")


def test_what_is_half_erased_gets_no_default_and_does_not_hold_up_the_others(
    clock: VirtualClock,
) -> None:
    store = Broken()
    with serving(store, clock=clock) as wire:
        wire.redefine(reward={"wait_seconds": 60, "accept_seconds": 600})
        for unit in ("ann", "ben"):
            visit(wire, unit, reward=None)
        store.broken = True
        expect_problem(wire.delete("/units/ann"), 503)
        clock.skip(60)
        for _ in range(2):
            wire.run(wire.services.expiry.expire_due())
            assert wire.rewards() == 1


def test_a_damaged_row_of_the_unit_goes_too() -> None:
    """It cannot be read, but its bytes hold the unit's hash."""
    store = MemoryStore()
    with serving(store) as wire:
        damaged, whole = visit(wire, "ann"), visit(wire, "ann")
        rows = store._experiments["shop"].decisions
        rows[damaged["id"]] = rows[damaged["id"]][:-1]
        assert erase(wire, "ann") == {"shop": {"decisions": 2, "events": 2}}
        expect_gone(wire, damaged, whole)


@pytest.mark.parametrize("parts", [0, 1])
def test_an_erasure_that_broke_off_is_done_by_the_next_one(parts: int) -> None:
    store = Broken()
    with serving(store) as wire:
        decision = visit(wire, "ann")
        store.broken, store.whole = True, parts
        expect_problem(wire.delete("/units/ann"), 503)
        if not parts:
            assert wire.explain(decision)["learned"] == []
        wire.refuse(410, decision, 0.0, reward_id="another")
        store.broken = False
        assert erase(wire, "ann") == {"shop": {"decisions": 1, "events": 1 - parts}}
        assert [type(event) for event in events(wire)].count(Tombstone) == 1
        expect_gone(wire, decision)
        store.dirty = True  # its files cannot be cleaned, by an erasure that finds no decision
        expect_problem(wire.delete("/units/ann"), 503)
        store.dirty = False
        assert erase(wire, "ann") == {"shop": {"decisions": 0, "events": 0}}


def fill(wire: Wire, policy: str) -> list[bytes]:
    """Thirty visits, every third of ann's; what must not be found once she is erased."""
    wire.redefine(policies={"linucb": {"kind": "linucb"}, "windowed": WINDOWED})
    for number in range(30):
        own = number % 3 == 0
        unit, age = ("ann", 31.4159) if own else (f"unit-{number}", 27.1828)
        context = {"persona": "cat", "age": age}
        decision = wire.select(unit=unit, policy=policy, context=context)
        wire.reward(decision, 1.0, reward_id=f"{unit}-buys")
    hashed = wire.services.eraser._sealer.unit_hash("ann")
    rows = wire.run(wire.services.store.decisions("shop", 0, 100))
    own = [row.payload for row in rows if unit_of(row.payload) == hashed]
    ends, numbers = [payload[-48:] for payload in own], {numbers_of(payload) for payload in own}
    return [*ends, *numbers, hashed.encode(), b"ann-buys"]


def numbers_of(payload: bytes) -> bytes:
    """The numbers that were learned from, as an event of the decision holds them."""
    return b64encode(decode_decision(payload).shown[0].row.numbers)


def found_in(folder: Path, word: bytes) -> bool:
    """A file may be renamed meanwhile: then all are looked at again."""
    while True:
        with suppress(FileNotFoundError):
            return any(word in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("policy", ["linucb", "windowed"])
def test_a_search_through_the_files_finds_nothing(tmp_path: Path, policy: str) -> None:
    """The unit's hash, its context and features, its reward_id: in no file of the store, while it
    is still open; the others' are where they were."""
    store = open_store(f"sqlite:///{tmp_path}/forage.db")
    with serving(store, snapshot_every_events=2) as wire:
        words = fill(wire, policy)
        assert [word for word in words if found_in(tmp_path, word)] == words
        assert erase(wire, "ann") == {"shop": {"decisions": 10, "events": 10}}
        assert [word for word in words if found_in(tmp_path, word)] == []
        other, *_ = wire.run(wire.services.store.decisions("shop", 0, 1))
        assert found_in(tmp_path, numbers_of(other.payload))
        assert wire.policy(policy)["rewards"] == 30


@pytest.mark.process
def test_a_search_through_redis_and_its_files_finds_nothing(tmp_path: Path) -> None:
    """Once the append-only file has been written anew."""
    plain = ("--stream-node-max-entries", "1", "--rdbcompression", "no")
    with redis_server(tmp_path, *plain) as server:
        store = RedisStore(server.url, patience=RedisTimeouts(connect_s=30.0, reply_s=30.0))
        with serving(store, snapshot_every_events=2) as wire:
            words = fill(wire, "windowed")
            assert [word for word in words if found_in(tmp_path, word)] == words
            assert erase(wire, "ann") == {"shop": {"decisions": 10, "events": 10}}
            wire.until(lambda: not any(found_in(tmp_path, word) for word in words))
            other, *_ = wire.run(wire.services.store.decisions("shop", 0, 1))
            numbers = numbers_of(other.payload)
            wire.until(lambda: found_in(tmp_path, numbers))  # in the file that took its place
            server.restart()
            wire.until(lambda: wire.get("/readyz").status_code == 200)
            assert wire.policy("windowed")["rewards"] == 30
