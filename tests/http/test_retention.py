"""Trimming: what is old and needed by nobody goes; the state, and what is open, stay."""

import asyncio
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any
from unittest import mock

import pytest

from service.log.stores.base import Record
from service.log.stores.memory import MemoryStore
from service.state.artifacts import pack_artifact
from tests.support.clock import VirtualClock, run_virtual
from tests.support.service import Wire, expect_problem, serving

DAY_S = 86_400.0
SHORT = {"wait_seconds": 60.0, "accept_seconds": 600.0}


def kept(store: MemoryStore) -> tuple[list[int], int]:
    """Positions of the events, and how many rows there are."""
    records = run_virtual(store.read("shop", 0, 10_000))
    return [record.position for record in records], len(store._experiments["shop"].decisions)


def snapshot(wire: Wire) -> int:
    [live] = wire.services.log.replicas.by_name.values()
    wire.run(wire.services.log.snapshots.save(live))
    return live.snapshot_position


def digest_of(wire: Wire) -> Any:
    return wire.policy("linucb")["head"]["digest"]


def test_a_reward_counts_once_as_long_as_it_is_accepted(clock: VirtualClock) -> None:
    store = MemoryStore()
    with serving(store, clock=clock) as wire:  # without a retention
        wire.teach(5)
        clock.skip(1e9)
        assert wire.trim() == 0
        assert kept(store)[1] == 5
    with serving(MemoryStore(), retention_days=0.001, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        [decision] = wire.teach()
        for _ in range(2):
            clock.skip(300.0)
            wire.teach()  # brings the log's time on
            wire.trim()
            assert wire.reward(decision, 1.0) == "duplicate"


def test_what_is_old_goes_up_to_the_older_of_two_snapshots(clock: VirtualClock) -> None:
    """Rows, marks and events: as far as the state can still be built twice from what is left."""
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        old = wire.teach(10)
        first = snapshot(wire)
        wire.teach(10)
        clock.skip(DAY_S + 3_600.0)
        assert wire.trim() > 0
        assert kept(store) == (list(range(1, 23)), 0)  # one snapshot alone: no event may go
        second = wire.services.log.replicas.by_name[
            "shop"
        ].snapshot_position  # which was taken for that
        assert second == 22
        wire.trim()
        assert kept(store) == (list(range(first + 1, second + 1)), 0)
        before = digest_of(wire)
        expect_problem(wire.get(f"/decisions/{old[0]['id']}"), 404)
        assert wire.policy("linucb")["decisions"] == 20
        assert wire.metrics()['forage_trimmed_total{experiment="shop"}'] > 30
    with serving(store, clock=clock) as wire:
        assert digest_of(wire) == before
    store._experiments["shop"].snapshots.clear()
    with serving(store, clock=clock) as wire:  # the origin, and what came after it
        assert digest_of(wire) == before
        wire.teach()


def test_open_decisions_and_those_after_them_stay(clock: VirtualClock) -> None:
    store = MemoryStore()
    with serving(store, retention_days=0.001, clock=clock) as wire:
        wire.teach(3)
        wire.redefine(reward={**SHORT, "accept_seconds": 30 * DAY_S})
        still_open = wire.select(policy="linucb")
        wire.redefine(reward=SHORT)
        wire.teach(3)
        clock.skip(8 * DAY_S)
        wire.trim()
        assert kept(store)[1] == 4
        assert wire.reward(still_open, 1.0) == "accepted"


def test_a_decision_whose_default_reward_is_due_stays_until_it_is_settled(
    clock: VirtualClock,
) -> None:
    store = MemoryStore()
    with serving(store, retention_days=0.001, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        wire.select(policy="linucb")
        clock.skip(DAY_S)
        wire.trim()
        assert kept(store)[1] == 1
        wire.run(wire.services.expiry.expire_due())
        wire.trim()
        assert kept(store)[1] == 0


def test_a_reader_is_waited_for(clock: VirtualClock) -> None:
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        path = "/experiments/shop/readers/archive"
        for number in (-1, 2**63, 10**30, 1.5, "3", None):
            problem = expect_problem(wire.put(path, {"position": number, "row": 0}), 422)
            assert problem["errors"][0]["path"] == "position"
        assert wire.put(path, {"position": 4, "row": 3}).status_code == 204
        wire.teach(5)
        snapshot(wire)
        wire.teach(5)
        snapshot(wire)
        clock.skip(2 * DAY_S)
        wire.trim()
        assert kept(store) == (list(range(5, 13)), 7)
        found = wire.get("/experiments/shop/readers").json()
        assert found == {"readers": {"archive": {"position": 4, "row": 3}}}
        assert wire.delete(path).status_code == 204
        wire.trim()
        assert kept(store) == (list(range(8, 13)), 0)


def test_a_reader_that_comes_late_is_waited_for_from_then_on(clock: VirtualClock) -> None:
    """What was found old before it came, and could not go yet, stays too."""
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        wire.select(policy="linucb")
        wire.teach(5)
        clock.skip(2 * DAY_S)
        wire.trim()
        assert kept(store)[1] == 6  # the first is due
        wire.put("/experiments/shop/readers/archive", {"position": 0, "row": 0})
        wire.run(wire.services.expiry.expire_due())
        wire.trim()
        assert kept(store)[1] == 6


def test_a_log_that_was_trimmed_to_its_end_is_looked_at_after_a_start(clock: VirtualClock) -> None:
    """Its end became the origin, as an erasure makes it, and nothing came since: there is nothing
    to walk over."""
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        wire.teach(3)
        wire.run(
            wire.services.log.snapshots.save_origin(wire.services.log.replicas.by_name["shop"])
        )
        clock.skip(2 * DAY_S)
        wire.trim()
        assert kept(store) == ([], 0)
        before = digest_of(wire)
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.run(asyncio.wait_for(_yielding(store, wire.services.retention.trim_all()), 2.0))
        assert digest_of(wire) == before


async def _yielding(store: MemoryStore, work: Awaitable[int]) -> int:
    """Other work gets its turn at every read, as it does with a real store."""
    read = store.read

    async def slowly(*arguments: Any) -> list[Record]:
        await asyncio.sleep(0)
        return await read(*arguments)

    with mock.patch.object(store, "read", slowly):
        return await work


def test_rows_that_are_damaged_or_never_settle_do_not_hold_trimming_up(
    clock: VirtualClock,
) -> None:
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        for _ in range(3):
            wire.select(policy="linucb")
        rows = store._experiments["shop"].decisions
        first = next(iter(rows))
        rows[first] = rows[first].replace(b"linucb", b"linux!", 1)
        wire.redefine(reward={**SHORT, "default": None})  # the default of the others is gone
        wire.teach(2)
        clock.skip(2 * DAY_S)
        wire.trim()
        assert kept(store)[1] == 0


@pytest.mark.parametrize("shadow", [False, True])
def test_what_a_training_reads_stays(clock: VirtualClock, shadow: bool) -> None:
    """A policy with a net is trained on all rewards since its head was born; so is a shadow."""
    store = MemoryStore()
    net = {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "share": 0.0}
    net |= {"shadow": shadow}
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        wire.teach(4)
        wire.redefine(policies={"linucb": {"kind": "linucb"}, "net": net})
        born = wire.get("/readyz").json()["positions"]["shop"]
        for _ in range(2):
            wire.teach(4)
            snapshot(wire)
        clock.skip(2 * DAY_S)
        wire.trim()
        positions, rows = kept(store)
        assert (positions[0], rows) == (born, 0)


def test_a_snapshot_that_cannot_be_read_does_not_become_the_origin(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT)
        wire.teach(3)
        first = snapshot(wire)
        wire.teach(3)
        snapshot(wire)
        kept_ones = store._experiments["shop"].snapshots
        kept_ones[first] = type(kept_ones[first])(first, b"damaged")
        clock.skip(2 * DAY_S)
        wire.trim()
        assert kept(store) == (list(range(1, 9)), 0)
        assert "events are not trimmed: the checksum does not match" in caplog.text


def rebuilt(wire: Wire) -> str:
    """Hand a head over that was made anew, and wait until it serves; the key of its artifact."""
    state = wire.services.log.replicas.states["shop"]
    learner = state.learners["linucb"]
    version = learner.version(learner.numbered + 1, learner.active.encoder)
    version.trained_to, version.without = state.position, frozenset({"left out"})
    content = pack_artifact(*learner.describe(version))
    answer = wire.post("/experiments/shop/policies/linucb/versions", content=content)
    assert answer.status_code == 202
    wire.until(lambda: wire.policy("linucb")["staged"] is None)
    return sha256(content).hexdigest()


def test_the_last_five_artifacts_stay_and_older_ones_go_with_their_events(
    clock: VirtualClock,
) -> None:
    """Also by a process that has not walked past these events."""
    store = MemoryStore()

    def there() -> list[bool]:
        return [run_virtual(store.blob("shop", each)) is not None for each in artifacts]

    with serving(store, retention_days=1.0, clock=clock) as wire:
        wire.redefine(reward=SHORT, policies={"linucb": {"kind": "linucb"}})
        artifacts = [rebuilt(wire) for _ in range(6)]
        clock.skip(DAY_S + 3_600.0)
        for _ in range(3):
            wire.teach()
            snapshot(wire)
        wire.trim()
        assert there() == [False, *[True] * 5]
        assert wire.trim() == 0
    with serving(store, retention_days=1.0, clock=clock) as wire:
        artifacts.append(rebuilt(wire))
        wire.trim()
        assert there() == [False, False, *[True] * 5]
