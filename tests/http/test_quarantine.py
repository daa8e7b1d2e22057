"""An event that cannot be folded stops its own experiment, until it is skipped, and no other."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock
from zlib import crc32

import pytest

from service.bandits.heads import digest
from service.errors import StoreUnavailable
from service.log.replicas import Replicas
from service.log.stores.base import Append, Record
from service.log.stores.memory import MemoryStore
from service.state.events import SCHEMA, Learned, Skipped, encode_event
from service.state.learner import Learner
from tests.support.clock import run_virtual
from tests.support.service import Json, Wire, expect_problem, serving

CURSED = 0.123
"""A reward that `cursed` heads cannot fold."""


@contextmanager
def cursed() -> Iterator[None]:
    """Heads that raise at one reward, after a part of the state has moved."""
    fold = Learner.fold

    def fails(self: Learner, position: int, settlements: Sequence[Learned]) -> None:
        fold(self, position, settlements)
        rewards = [one.reward for each in settlements for one in each.settled]
        if self.name == "linucb" and CURSED in rewards:
            raise ZeroDivisionError("cursed")

    with mock.patch.object(Learner, "fold", fails):
        yield


def add_unreadable(store: MemoryStore, experiment: str = "shop") -> int:
    """Append a record that cannot be read: its reward is null. Return its position."""
    settled = [{"arm": "ball", "reward": None, "row": ["", [0, 0]], "inline": False}]
    event = {"type": "Corrected", "at": 1.0, "decision": "d", "policy": "linucb"}
    event |= {"schema_version": 1, "settled": settled, "was": [1e308], "since": [2]}
    body = json.dumps(event).encode()
    record = b'{"schema":%d,"event":%b,"crc":%d}' % (SCHEMA, body, crc32(body, SCHEMA))

    async def commit() -> int:
        (appended,) = await store.commit([Append(experiment, record, {"bad": ""})])
        return int(appended.position)  # type: ignore[union-attr]

    return run_virtual(commit())


def second(wire: Wire) -> None:
    assert wire.put("/experiments/other", wire.definition()).status_code == 201


def digests(store: MemoryStore, name: str = "shop") -> dict[str, str]:
    """Of the heads, folded from the log by somebody who has never seen it."""

    async def fold() -> dict[str, str]:
        state = await Replicas(store).discover(name)
        heads = {name: one.active.head for name, one in state.learners.items()}
        return {name: digest(head) for name, head in heads.items() if head is not None}

    return run_virtual(fold())


def stopped(wire: Wire) -> Json:
    """What the service tells of the only quarantine."""
    (found,) = wire.get("/status").json()["quarantined"]
    return dict(found)


def skip(wire: Wire) -> None:
    position = stopped(wire)["position"]
    answer = wire.post("/experiments/shop/skips", {"position": position})
    assert answer.json() == {"served": True}


def test_an_unreadable_event_stops_its_experiment_alone() -> None:
    """As a log that holds two rewards of 1e308 does: the landed service did not start."""
    store = MemoryStore()
    with serving(store) as wire:
        second(wire)
        decision = wire.select(experiment="shop", policy="linucb")
    position = add_unreadable(store)
    with serving(store) as wire:
        for answer in (
            wire.post("/select", {"experiment": "shop", "context": {"persona": "cat"}}),
            wire.post("/reward", {"decision_id": decision["decision_id"], "reward": 1.0}),
            wire.get("/experiments/shop"),
            wire.put("/experiments/shop", {"policies": {"a": {"kind": "random"}}}),
            wire.get(f"/decisions/{decision['id']}"),
        ):
            problem = expect_problem(answer, 503)
            assert problem["type"].endswith("/quarantined")
            assert f"position {position} cannot be folded" in problem["detail"]
        assert wire.reward(wire.select(experiment="other", policy="linucb"), 1.0) == "accepted"
        unnamed = expect_problem(wire.post("/select", {"context": {"persona": "cat"}}), 422)
        assert unnamed["errors"][0]["path"] == "experiment"  # it does not fall to the other
        assert wire.get("/readyz").status_code == 200
        assert wire.get("/healthz").json()["quarantined"] == 1
        assert stopped(wire)["name"] == "shop"
        samples = wire.metrics()
        assert samples['forage_quarantined{experiment="shop"}'] == 1
        assert samples['forage_quarantined{experiment="other"}'] == 0


def test_a_skipped_event_changes_nothing_and_the_experiment_is_served_again() -> None:
    store, whole = MemoryStore(), MemoryStore()
    for log, broken in ((store, True), (whole, False)):
        with serving(log) as wire:
            for _ in range(3):
                wire.reward(wire.select(policy="linucb", arms=["ball"]), 1.0)
        if broken:
            position = add_unreadable(log)
    expected = digests(whole)
    with serving(store) as wire:
        expect_problem(wire.post("/experiments/nobody/skips", {"position": 1}), 404)
        wrong = wire.post("/experiments/shop/skips", {"position": position - 1})
        assert "position" in expect_problem(wrong, 409)["detail"]
        answer = wire.post("/experiments/shop/skips", {"position": position})
        assert answer.json() == {"served": True}
        expect_problem(wire.post("/experiments/shop/skips", {"position": position}), 409)
        assert wire.policy("linucb")["head"]["digest"] == expected["linucb"]
        assert wire.get("/status").json()["quarantined"] == []
        assert wire.reward(wire.select(policy="lints", arms=["ball"]), 1.0) == "accepted"
    assert digests(store)["linucb"] == expected["linucb"]
    with serving(store) as wire:  # from a snapshot that was taken after it
        assert wire.reward(wire.select(experiment="shop", policy="linucb"), 1.0) == "accepted"


class Slow(MemoryStore):
    """Others have their turn while it is read."""

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        return await super().read(experiment, after, limit)


def test_nothing_is_decided_by_a_state_that_is_still_folded_anew() -> None:
    store = Slow()
    with serving(store) as wire:
        wire.reward(wire.select(experiment="shop", policy="linucb"), 1.0)
    position = add_unreadable(store)

    async def lift() -> set[int]:
        replicas, seen = Replicas(store), set[int]()
        await replicas.follow(0)
        event = Skipped(at=1.0, position=position, reason="for this test")
        await store.commit([Append("shop", encode_event(event), {"skip/0": str(position)})])
        lifting = asyncio.ensure_future(replicas.by_name["shop"].lift())
        while not lifting.done():
            await asyncio.sleep(0)
            with suppress(StoreUnavailable):
                state = replicas.state("shop")
                assert state is not None
                seen.add(state.position)
        return seen

    assert run_virtual(lift()) == {position + 1}


def test_a_reward_that_a_head_cannot_fold_is_not_acknowledged_and_stops_its_experiment() -> None:
    store = MemoryStore()
    with cursed():
        with serving(store) as wire:
            second(wire)
            decision = wire.select(experiment="shop", policy="linucb")
            assert "cursed" in wire.refuse(503, decision, CURSED)["detail"]
            wire.refuse(503, decision, CURSED)
            assert not wire.services.log.committer.degraded
            assert (
                wire.reward(wire.select(experiment="other", policy="linucb"), CURSED / 2)
                == "accepted"
            )
        with serving(store) as wire:
            skip(wire)
            assert wire.reward(wire.select(experiment="shop", policy="linucb"), 1.0) == "accepted"
            assert wire.reward(decision, CURSED) == "duplicate"


def test_nothing_further_is_learned_of_an_arm_whose_reward_was_skipped() -> None:
    """A correction says what was learned before it, and of this arm nothing was."""
    store = MemoryStore()
    with cursed(), serving(store) as wire:
        rules = {"range": [0, 1], "aggregation": "last", "default": None}
        wire.redefine(reward=rules)
        decision = wire.select(policy="linucb")
        wire.refuse(503, decision, CURSED)
        skip(wire)
        assert "taken out" in wire.refuse(410, decision, 1.0, reward_id="more")["detail"]


def test_a_replica_that_had_folded_the_event_folds_the_log_again() -> None:
    store = MemoryStore()
    with serving(store) as wire:
        wire.teach()
        before = wire.policy("linucb")["head"]["digest"]

    def stop_and_skip() -> None:
        with cursed(), serving(store) as wire:
            wire.refuse(503, wire.select(policy="linucb"), CURSED)
            skip(wire)

    async def replica() -> tuple[str, list[int]]:
        replicas = Replicas(store)
        await replicas.discover("shop")
        await asyncio.to_thread(stop_and_skip)
        await replicas.follow(0)
        state = replicas.by_name["shop"].state
        head = state.learners["linucb"].active.head
        assert head is not None
        return digest(head), list(state.skips)

    assert asyncio.run(replica()) == (before, [3])


def test_a_snapshot_that_holds_a_skipped_event_is_passed_over() -> None:
    """It was taken by a replica that could fold the event, before another one skipped it."""
    store = MemoryStore()
    with serving(store) as wire:
        wire.reward(wire.select(experiment="shop", policy="linucb"), 1.0)
        before = digests(store)
        wire.reward(
            wire.select(experiment="shop", policy="linucb"), 0.5
        )  # the snapshot at the end holds this one
    event = Skipped(at=1.0, position=3, reason="for this test")
    run_virtual(store.commit([Append("shop", encode_event(event), {"skip/0": "3"})]))
    assert digests(store) == before


@pytest.mark.parametrize("aggregation", ["sum", "last"])
def test_huge_rewards_of_one_tenant_leave_the_log_and_the_other_tenant_whole(
    aggregation: str,
) -> None:
    """Three requests stopped the landed store for ever: a range up to 1e308 and two rewards."""
    with serving() as wire:
        rules: Json = {"range": [0, 1e308], "aggregation": aggregation}
        body = {**wire.definition(), "reward": rules}
        problem = expect_problem(wire.put("/experiments/huge", body), 422)
        assert problem["errors"][0]["path"] == "reward.range"
        body["reward"]["range"] = [0, 1e12]
        assert wire.put("/experiments/huge", body).status_code == 201
        decision = wire.select(experiment="huge", policy="linucb")
        for number in range(3):
            content: dict[str, Any] = {"decision_id": decision["decision_id"], "reward": 1e12}
            wire.post("/reward", {**content, "reward_id": str(number)})
        assert wire.reward(wire.select(experiment="shop", policy="linucb"), 1.0) == "accepted"
        assert wire.policy("linucb", "huge")["mean_reward"] == 1e12
