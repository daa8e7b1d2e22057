"""Idempotency-Key: a request that is repeated gets the decision that was made."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from service.log.stores.memory import MemoryStore
from service.log.stores.store import Keyed, KeyedValues
from tests.support.service import Json, Wire, expect_problem, paths, serving
from tests.support.stores import Disk

SAME = ("id", "arm", "propensity", "ranking", "policy", "model_version", "reward_by")
TREAT = {"id": "treat", "features": {"category": "food", "brand": "yum"}}
QUESTION: Json = {
    "context": {"persona": "cat", "age": 3},
    "unit": "user-1",
    "policy": "lints",
    "arms": ["kibble", "mouse", TREAT],
    "top_k": 2,
}


def ask(wire: Wire, key: str, **question: Any) -> httpx.Response:
    body = {"context": {"persona": "cat"}, **question}
    return wire.post("/select", body, headers={"Idempotency-Key": key})


def asked(wire: Wire, key: str, **question: Any) -> Json:
    answer = ask(wire, key, **question)
    assert answer.status_code == 200, answer.text
    decision: Json = answer.json()
    return decision


def expect_same(*decisions: Json) -> None:
    first, *others = ([decision[name] for name in SAME] for decision in decisions)
    assert all(other == first for other in others)


@pytest.mark.parametrize("question", [{}, QUESTION], ids=["least", "most"])
def test_the_same_key_gives_the_same_decision_and_no_other_does(wire: Wire, question: Json) -> None:
    wire.put("/experiments/other", {**wire.definition(), "name": "other"})
    question = {"experiment": "shop", **question}
    answers = [asked(wire, "page-7", **question) for _ in range(10)]
    expect_same(*answers)
    others = [asked(wire, f"page-{n}", **question)["id"] for n in range(8, 12)]
    elsewhere = asked(wire, "page-7", experiment="other")["id"]
    assert len({answers[0]["id"], *others, elsewhere, wire.select(experiment="shop")["id"]}) == 7
    assert wire.metrics()['forage_repeated_decisions_total{experiment="shop"}'] == 9


def test_a_repeated_decision_is_logged_and_settled_once_and_stays_the_same(wire: Wire) -> None:
    first, again = (asked(wire, "k", policy="linucb") for _ in range(2))
    assert wire.policy("linucb")["decisions"] == 1
    assert [wire.reward(each, 1.0) for each in (first, again)] == ["accepted", "duplicate"]
    assert wire.rewards() == 1
    wire.delete(f"/experiments/shop/arms/{first['arm']}")
    expect_same(first, asked(wire, "k", policy="linucb"))


@pytest.mark.parametrize(
    "other",
    [
        {"context": {"persona": "dog", "age": 3}},
        {"unit": "user-2"},
        {"unit": None},
        {"policy": "linucb"},
        {"arms": ["mouse", "kibble", TREAT]},
        {"arms": ["kibble", "mouse"]},
        {"arms": ["kibble", "mouse", {**TREAT, "features": {"category": "food", "brand": "z"}}]},
        {"top_k": 1},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_request_under_a_known_key_is_refused(wire: Wire, other: Json) -> None:
    first = asked(wire, "k", **QUESTION)
    problem = expect_problem(ask(wire, "k", **{**QUESTION, **other}), 409)
    assert "Idempotency-Key" in problem["detail"]
    expect_same(first, asked(wire, "k", **QUESTION))
    short = asked(wire, "l")  # a value that was left out may be left out again or said
    expect_same(short, asked(wire, "l", policy=short["policy"]))
    expect_same(short, asked(wire, "l", arms=["kibble", "mouse", "ball"]))


def test_a_key_that_comes_many_times_at_once_is_one_decision(wire: Wire) -> None:
    async def burst() -> list[httpx.Response]:
        body, headers = {"context": {"persona": "cat"}}, {"Idempotency-Key": "k"}
        calls = (wire.client.post("/select", json=body, headers=headers) for _ in range(30))
        return list(await asyncio.gather(*calls))

    expect_same(*(answer.json() for answer in wire.run(burst())))


def test_another_process_that_was_first_is_followed() -> None:
    """Both looked before either wrote: the row that came first is the decision."""

    class Late(MemoryStore):
        blind = False

        async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
            return {} if self.blind else await super().get(experiment, table, keys)

    store = Late()
    with serving(store) as wire:
        first = asked(wire, "k")
        store.blind = True
        expect_same(first, *(asked(wire, "k") for _ in range(5)))


def test_while_the_log_is_gone_a_key_holds_in_the_process_and_later_in_the_log() -> None:
    disk = Disk()
    with serving(disk) as wire:
        before = asked(wire, "before")
        disk.full = True
        first, again = (asked(wire, "k") for _ in range(2))
        expect_same(first, again)
        assert (first["logged"], again["logged"]) == (False, False)
        disk.full = False
        wire.until(lambda: not wire.services.log.committer.degraded)
        later = asked(wire, "k")
        expect_same(first, later)
        assert later["logged"] is True
        expect_same(before, asked(wire, "before"))
        statuses = [wire.reward(decision, 1.0) for decision in (first, again, later)]
        assert statuses == ["accepted", "duplicate", "duplicate"]


def test_two_processes_decide_a_key_alike_while_the_log_is_gone() -> None:
    """By chance alone, and without a unit: the key stands for both."""
    disk = Disk()
    with serving(disk) as one, serving(disk) as other:
        one.select()
        disk.full = True
        for wire in (one, other):
            wire.select()  # the log is known to be gone
        for number in range(20):
            first, second = (asked(wire, f"k{number}") for wire in (one, other))
            for name in ("id", "policy", "arm", "propensity", "model_version"):
                assert first[name] == second[name]
        disk.full = False


def test_of_two_decisions_under_a_key_the_one_in_the_log_counts() -> None:
    disk = Disk()
    with serving(disk) as one, serving(disk) as other:
        disk.full = True
        for wire in (one, other):
            wire.select()  # the log is known to be gone
        first, second = asked(one, "k", arms=["kibble"]), asked(other, "k", arms=["mouse"])
        assert first["id"] == second["id"]
        disk.full = False
        third = asked(other, "l")
        for wire in (one, other):
            wire.until(lambda: not wire.services.log.committer.degraded)  # noqa: B023
        assert one.reward(first, 1.0) == "accepted"
        assert "its decision counts" in other.refuse(410, second)["detail"]
        assert other.reward(third, 1.0) == "accepted"


def test_the_reward_of_a_decision_that_may_be_another_under_its_key_waits_for_the_row() -> None:
    disk = Disk()
    with serving(disk) as one, serving(disk) as other:
        disk.full = True
        one.select()
        first = asked(one, "k")
        disk.full = False
        other.refuse(503, first)
        one.until(lambda: not one.services.log.committer.degraded)
        assert other.reward(first, 1.0) == "accepted"


OLD, NEW, NEWER = b"the old secret" * 2, b"the new secret" * 2, b"the newest one" * 2


@pytest.mark.parametrize("question", [{}, QUESTION], ids=["least", "most"])
def test_a_key_holds_over_rotations_of_the_secret(question: Json) -> None:
    store = MemoryStore()
    with serving(store, token_keys=[OLD]) as wire:
        old = asked(wire, "k", **question)
    with serving(store, token_keys=[NEW, OLD]) as wire:
        expect_same(old, asked(wire, "k", **question))
        new = asked(wire, "l", **question)
        expect_problem(ask(wire, "k", **{**question, "context": {"persona": "dog"}}), 409)
    with serving(store, token_keys=[NEWER, NEW, OLD]) as wire:
        expect_same(old, asked(wire, "k", **question))
        expect_same(new, asked(wire, "l", **question))
    assert len(asyncio.run(store.decisions("shop", 0, 9))) == 2


@pytest.mark.parametrize("key", ["", "k" * 257], ids=["empty", "long"])
def test_a_key_of_a_wrong_length_is_refused_by_name(wire: Wire, key: str) -> None:
    assert paths(expect_problem(ask(wire, key), 422)) == ["Idempotency-Key"]
