"""A policy that watches for changes, over the wire; and the change in the log, once."""

import asyncio
import random
from contextlib import AsyncExitStack

from service.app import open_services
from service.log.stores import Store
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from service.state.events import AnyEvent, ChangeDetected, decode_event, encode_event
from tests.support.clock import run_virtual
from tests.support.service import SHOP, Wire, serving
from tests.support.stores import SharedStore
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
    """Count the visits before the policy detects a change, up to `count`."""
    rng = random.Random(seed)
    for number in range(count):
        persona = rng.choice(["cat", "dog"])
        decision = wire.select(context={"persona": persona})
        wire.reward(decision, float(rng.random() < clicks[persona]))
        if wire.services.log.replicas.states["shop"].learners["p"].changes:
            return number
    return count


def changes_in(store: Store) -> list[ChangeDetected]:
    records = run_virtual(store.read("shop", 0, 10_000))
    events = [decode_event(record.payload) for record in records]
    return [event for event in events if isinstance(event, ChangeDetected)]


def test_a_shift_is_in_the_policys_history_and_in_the_log_once() -> None:
    """300 visits of dogs that click 9 times in 10, then once in 20: detected within 100 visits, for
    persona=dog; the head loses dogs' rewards and keeps the cats'."""
    store = MemoryStore()
    with serving(store) as wire:
        wire.redefine(policies=POLICIES)
        assert visits(wire, 300, {"cat": 0.5, "dog": 0.9}, seed=1) == 300
        before = wire.policy("p")
        assert (before["versions"], before["head"]["effective_count"]) == ([], 300)
        assert visits(wire, 100, {"cat": 0.5, "dog": 0.05}, seed=2) < 100
        status = wire.policy("p")
        [entry] = status["versions"]
        assert entry["change"] == "persona=dog"
        assert (entry["version"], entry["watermark"]) == (None, None)
        assert 300 < entry["position"] <= wire.get("/experiments/shop").json()["position"]
        assert 130 < status["head"]["effective_count"] < 250
        assert status["rewards"] > 300
    [event] = changes_in(store)
    assert (event.policy, event.number, event.stratum) == ("p", 1, "persona=dog")
    with serving(store) as wire:
        assert wire.policy("p")["versions"] == status["versions"]
        assert wire.policy("p")["head"] == status["head"]


def entries_of_a_shift() -> list[tuple[Append, AnyEvent]]:
    """Write a log of a shop whose dogs stop clicking half way, without the change that is due."""
    log, rng = Log(), random.Random(3)
    log.define(shop(p={"kind": "lints", "draws": 16, "change": True, "features": ["pet x kind"]}))
    for number in range(600):
        pet = rng.choice(["cat", "dog"])
        chance = {"cat": 0.5, "dog": 0.05 if number > 300 else 0.9}[pet]
        log.settle("p", {"toy1": float(rng.random() < chance)}, {"pet": pet})
    events = [event for event, _ in log.records]
    return [(Append("shop", encode_event(e), {f"{n}": ""}), e) for n, e in enumerate(events)]


def test_two_services_on_one_log_say_a_change_once_and_fold_it_alike() -> None:
    """Both notice it at the same event; the second finds that the log says it already."""
    store, settings = SharedStore(), Settings(store="memory://", experiments=[SHOP])
    entries = entries_of_a_shift()

    async def play() -> None:
        await store.commit([entries[0][0]])
        async with AsyncExitStack() as stack:
            opened = [open_services(settings, store) for _ in range(2)]
            logs = [(await stack.enter_async_context(each)).log for each in opened]
            for number, (entry, event) in enumerate(entries[1:]):
                await logs[number % 2].committer.append(entry, event)
            states = [log.replicas.states["shop"] for log in logs]
            await asyncio.sleep(10.0)  # both read the events of the other
            assert all(state.learners["p"].changes for state in states)
            assert bits(states[0]) == bits(states[1])

    run_virtual(play())
    numbers = [event.number for event in changes_in(store)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) <= 2


def test_a_change_that_was_due_when_the_process_ended_is_said_by_the_next() -> None:
    store = MemoryStore()
    run_virtual(store.commit([entry for entry, _ in entries_of_a_shift()]))
    with serving(store) as wire:
        wire.until(lambda: wire.services.log.replicas.states["shop"].learners["p"].changes == 1)
    assert [event.stratum for event in changes_in(store)] == ["pet=dog"]
