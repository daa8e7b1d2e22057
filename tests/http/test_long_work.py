"""What takes long keeps no other request waiting: it is made in another thread, or in slices."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from service.bandits.heads import HeadHealth, RidgeHead
from service.decide import arms, select
from service.definition.select_request import InlineArm, SelectRequest
from service.observe import explain
from tests.support.clock import SetClock
from tests.support.service import Wire, expect_problem, paths, serving


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving(clock=SetClock()) as wire:  # with threads
        yield wire


def inline(count: int, name: str = "") -> list[dict[str, Any]]:
    return [{"id": f"{name}{index}", "features": {"category": "toy"}} for index in range(count)]


def threads_of(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """Where a function is called, from now on."""
    found: list[int] = []
    whole = getattr(module, name)

    def calling(*arguments: Any) -> Any:
        found.append(threading.get_ident())
        return whole(*arguments)

    monkeypatch.setattr(module, name, calling)
    return found


def turns_of_others(wire: Wire, work: Awaitable[Any]) -> int:
    """How often another task has its turn while the work goes on."""

    async def count() -> int:
        task, turns = asyncio.ensure_future(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        await task
        return turns

    return wire.run(count())


def test_a_long_ranking_is_drawn_in_another_thread(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threads_of(monkeypatch, select, "decide")
    answer = wire.select(policy="lints", arms=inline(2_000), top_k=100)
    assert len(answer["ranking"]) == 100
    assert len(found) == 1
    assert found[0] != threading.get_ident()


def test_a_short_decision_is_made_on_the_spot_once_measured(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threads_of(monkeypatch, select, "decide")
    for _ in range(3):  # the first two are measured: the head is stale in the first
        wire.select(policy="lints", top_k=2)
    assert [thread == threading.get_ident() for thread in found] == [False, False, True]


def test_many_arms_outside_the_catalogue_are_encoded_in_another_thread(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threads_of(monkeypatch, arms, "find")
    wire.select(policy="linucb", arms=inline(500))
    wire.select(policy="linucb", arms=inline(5))
    assert [thread == threading.get_ident() for thread in found] == [False, True]


def test_what_is_folded_while_arms_are_encoded_is_not_missed(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm that is removed meanwhile was there when all was decided: the row names the
    position."""
    named = ["ball", *(InlineArm(f"i{n}", {"category": "toy"}) for n in range(500))]
    question = SelectRequest({"persona": "cat"}, policy="linucb", arms=named)

    found, goes_on, find = threading.Event(), threading.Event(), arms.find

    def held(*asked: Any) -> Any:
        found.set()
        assert goes_on.wait(10)
        return find(*asked)

    monkeypatch.setattr(arms, "find", held)

    before = wire.services.log.replicas.states["shop"].position

    async def both() -> Any:
        store, state = wire.services.store, wire.services.log.replicas.states["shop"]
        deciding = asyncio.ensure_future(wire.services.selector.select(question))
        await asyncio.to_thread(found.wait, 10)
        removing = asyncio.ensure_future(wire.services.admin.remove_arm(state, "ball", ""))
        await store.wait({"shop": before}, 10)  # it is logged, and waits to be folded
        goes_on.set()
        await removing
        return await deciding

    decision = wire.run(both()).decision
    assert decision.model_version.endswith(f"@{before}")
    assert wire.services.log.replicas.states["shop"].position == before + 1


def test_each_of_a_batch_begins_in_a_turn_of_its_own(wire: Wire) -> None:
    body = {"requests": [{"context": {"persona": "cat"}}] * 200}
    work = wire.client.post("/select/batch", json=body)
    assert turns_of_others(wire, work) >= 200
    tokens = [
        each["answer"]["decision_id"] for each in wire.post("/select/batch", body).json()["results"]
    ]
    rewards = {"requests": [{"decision_id": token, "reward": 1.0} for token in tokens]}
    assert turns_of_others(wire, wire.client.post("/reward/batch", json=rewards)) >= 200


def test_a_decision_on_many_arms_is_explained_in_another_thread(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = wire.select(policy="lints", arms=inline(300))
    found = threads_of(monkeypatch, explain, "attributions")
    answer = wire.get(f"/decisions/{many['id']}").json()
    assert [thread == threading.get_ident() for thread in found] == [False]
    assert len(answer["candidates"]) == 300
    assert sum(each["probability"] for each in answer["candidates"]) == pytest.approx(1.0)


def test_a_decision_that_would_take_too_much_is_refused(wire: Wire) -> None:
    def refused(wire: Wire, count: int, name: str = "", **question: Any) -> None:
        body = {"context": {"persona": "cat"}, "arms": inline(count, name), **question}
        assert paths(expect_problem(wire.post("/select", body), 422)) == ["arms"]

    refused(wire, 9_000, "x" * 53)  # each id twice: 1.5 MB, of a body of 0.9 MB
    assert wire.policy("lints")["decisions"] == wire.policy("linucb")["decisions"] == 0
    with serving(max_decision_bytes=1_000) as short:
        assert short.select(arms=inline(5))
        refused(short, 60)
        short.select()  # the catalogue is its owner's
    with serving(max_select_memory_bytes=4_000_000) as small:
        small.select(policy="lints", arms=inline(3_000))
        refused(small, 3_000, policy="lints", top_k=2)  # 64 draws: 6 MB with what ranks them


def test_the_health_of_a_wide_head_is_looked_at_in_a_thread_and_leaves_the_head_alone(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head keeps what it derives: what a thread derived while a reward was folded would be kept
    in place of what holds now."""
    monkeypatch.setattr("service.observe.overview.WIDE", 1)
    wire.teach()
    state = wire.services.log.replicas.state("shop")
    assert state is not None
    live, looked_at = state.learners["linucb"].active.head, list[tuple[object, bool]]()
    health = RidgeHead.health

    def seen(self: RidgeHead) -> HeadHealth:
        looked_at.append((self, threading.current_thread() is threading.main_thread()))
        return health(self)

    monkeypatch.setattr(RidgeHead, "health", seen)
    told = wire.policy("linucb")["head"]
    [(head, on_the_loop)] = looked_at
    assert head is not live
    assert not on_the_loop
    assert isinstance(live, RidgeHead)
    assert told["effective_count"] == live.n == 1.0
    assert told["smallest_eigenvalue"] == health(live).smallest_eigenvalue
