"""A policy that watches for changes, over the wire; and the change in the log, once."""

import asyncio
import random
from typing import Any

import pytest

from service.log.clock import LogClock
from service.log.commit_gate import CommitGate
from service.log.journal import Journal
from service.log.stores import Store
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import AnyEvent, ChangeDetected, decode_event, encode_event
from tests.support.clock import run_virtual
from tests.support.service import Wire, serving
from tests.unit.folding import Log, bits, shop

WATCHING = {
    "kind": "lints",
    "draws": 64,
    "change": True,
    "features": ["persona x category"],
    "learns_from": "all",
    "share": 0.0,
}
POLICIES = {"p": WATCHING, "shows": {"kind": "random"}}
"""Chance shows, so that the dogs' change is not one of the arm that they are shown most."""


def visits(wire: Wire, count: int, clicks: dict[str, float], seed: int) -> int:
    """How many came before the policy said that the world had changed; `count` if it did not."""
    rng = random.Random(seed)
    for number in range(count):
        persona = rng.choice(["cat", "dog"])
        decision = wire.select(context={"persona": persona})
        wire.reward(decision, float(rng.random() < clicks[persona]))
        if wire.services.journal.states["shop"].learners["p"].changes:
            return number
    return count


def changes_in(store: Store, experiment: str = "shop") -> list[ChangeDetected]:
    records = run_virtual(store.read(experiment, 0, 10_000))
    events = [decode_event(record.payload) for record in records]
    return [event for event in events if isinstance(event, ChangeDetected)]


def test_a_shift_is_in_the_policys_history_and_in_the_log_once() -> None:
    """300 visits of dogs that click 9 times in 10, then once in 20: said within 100 visits, for
    persona=dog; the head loses dogs' rewards and keeps the cats'."""
    store = MemoryStore()
    with serving(store) as wire:
        wire.redefine(policies=POLICIES)
        assert visits(wire, 300, {"cat": 0.5, "dog": 0.9}, seed=1) == 300
        assert wire.policy("p")["versions"] == []
        before = wire.policy("p")["head"]["effective_count"]
        assert visits(wire, 100, {"cat": 0.5, "dog": 0.05}, seed=2) < 100
        status = wire.policy("p")
        [entry] = status["versions"]
        assert entry["change"] == "persona=dog"
        assert (entry["version"], entry["watermark"]) == (None, None)
        assert 300 < entry["position"] <= wire.get("/experiments/shop").json()["position"]
        assert before == 300
        assert 130 < status["head"]["effective_count"] < 250
        assert status["rewards"] > 300
    [event] = changes_in(store)
    assert (event.policy, event.number, event.stratum) == ("p", 1, "persona=dog")
    with serving(store) as wire:
        assert wire.policy("p")["versions"] == status["versions"]
        assert wire.policy("p")["head"] == status["head"]


class Shared(MemoryStore):
    """As a Redis store: several processes append to it."""

    shared = True


async def eventually(true: Any) -> None:
    for _ in range(1_000):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


def shifted(visits: int) -> list[AnyEvent]:
    """A log of a shop whose dogs stop clicking half way; without the change that it makes due."""
    log, rng = Log(), random.Random(3)
    log.define(shop(p={"kind": "lints", "draws": 16, "change": True, "features": ["pet x kind"]}))
    for number in range(visits):
        pet = rng.choice(["cat", "dog"])
        chance = {"cat": 0.5, "dog": 0.05 if 2 * number > visits else 0.9}[pet]
        log.settle("p", {"toy1": float(rng.random() < chance)}, {"pet": pet})
    return [event for event, _ in log.records]


def test_two_services_on_one_log_say_a_change_once_and_fold_it_alike() -> None:
    """Both notice it at the same event; the second to say it finds that it is said."""
    store = Shared()

    async def play() -> None:
        journals = [
            Journal(store, Settings(store="memory://"), Telemetry(), CommitGate(), LogClock())
            for _ in range(2)
        ]
        for journal in journals:
            await journal.open()
        for number, event in enumerate(shifted(600)):
            entry = Append("shop", encode_event(event), {f"event/{number}": ""})
            await journals[number % 2].append(entry, event)
        states = [(await journal.discover("shop")) for journal in journals]
        await eventually(lambda: all(state.learners["p"].changes for state in states))
        await eventually(lambda: states[0].position == states[1].position)
        assert bits(states[0]) == bits(states[1])
        for journal in journals:
            await journal.close()

    run_virtual(play())
    numbers = [event.number for event in changes_in(store)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) <= 2


def test_a_change_that_was_due_when_the_process_ended_is_said_by_the_next() -> None:
    store = MemoryStore()
    events = shifted(600)

    async def written() -> None:
        appends = [Append("shop", encode_event(e), {f"{n}": ""}) for n, e in enumerate(events)]
        await store.commit(appends)
        journal = Journal(store, Settings(store="memory://"), Telemetry(), CommitGate(), LogClock())
        await journal.open()
        await eventually(lambda: journal.states["shop"].learners["p"].changes == 1)
        await journal.close()

    run_virtual(written())
    assert [event.stratum for event in changes_in(store)] == ["pet=dog"]
