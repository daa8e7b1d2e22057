"""How much a request does, counted where no clock is needed: it may not grow unnoticed.

Calls are those that CPython's profiler sees, of Python functions and of C functions, in the process
of one request from the application's door to its answer.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.support.plug import Plug
from service.features import View
from service.posterior import ridge
from service.stores.base import Entry, Outcome
from service.stores.memory import MemoryStore
from tests.support.service import Wire, serving


class Counting(MemoryStore):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        self.asked["commit"] += 1
        self.asked["entries"] += len(entries)
        return await super().commit(entries)

    async def marks(self, experiment: str, identities: Sequence[str]) -> Any:
        self.asked["marks"] += 1
        return await super().marks(experiment, identities)

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        self.asked["decision"] += 1
        return await super().decision(experiment, decision)


class Door:
    """Asks by the protocol's own door, without a socket between."""

    def __init__(self, wire: Wire) -> None:
        self._plug = Plug(wire)
        self.calls: Counter[str] = Counter()

    def _saw(self, frame: FrameType, event: str, what: Any) -> None:
        if event in ("call", "c_call"):
            self.calls[event] += 1

    def ask(self, path: str, body: bytes) -> bytes:
        def watch() -> Callable[[], None]:
            sys.setprofile(self._saw)
            return lambda: sys.setprofile(None)

        answer = self._plug.post(path, body, {"Content-Type": "application/json"}, watch)
        assert answer.status_code == 200
        return answer.content


@pytest.fixture
def store() -> Counting:
    return Counting()


SELECTS = {"linucb": (205, 205), "lints": (205, 215)}
"""Python calls and C calls of a decision, from the bytes of the request to those of the answer, at
most: what they were, and a tenth."""


@pytest.mark.parametrize("policy", SELECTS)
def test_a_decision_takes_so_many_calls(store: Counting, policy: str) -> None:
    with serving(store) as wire:
        door = Door(wire)
        body = b'{"policy":"%s","context":{"persona":"cat"}}' % policy.encode()
        door.ask("/select", body)
        door.calls.clear()
        store.asked.clear()
        door.ask("/select", body)
        python, c = SELECTS[policy]
        assert door.calls["call"] <= python
        assert door.calls["c_call"] <= c
        assert store.asked == {"commit": 1, "entries": 1}


REWARD = (270, 195)
"""The same of a reward, folded into the head that it is for."""


def test_a_reward_takes_so_many_calls_and_one_commit(store: Counting) -> None:
    with serving(store) as wire:
        door = Door(wire)
        for _ in range(2):
            token = wire.select(policy="linucb")["decision_id"]
            door.calls.clear()
            store.asked.clear()
            door.ask("/reward", b'{"decision_id":"%s","reward":1}' % token.encode())
        python, c = REWARD
        assert door.calls["call"] <= python, door.calls
        assert door.calls["c_call"] <= c, door.calls
        assert store.asked == {"commit": 1, "entries": 1}


class Numpy:
    """numpy as modules of the service see it, and how often they call it by name.

    What operators of arrays do is no call, nor what other modules than `np` offer.
    """

    def __init__(self, whole: Any, calls: Counter[str], name: str = "np") -> None:
        self._whole, self._calls, self._name = whole, calls, name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        if isinstance(found, type) or not (callable(found) or isinstance(found, ModuleType)):
            return found
        return Numpy(found, self._calls, f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._calls[self._name] += 1
        return self._whole(*arguments, **named)


NUMPY = {"linucb": 10, "lints": 9, "reward": 8}
"""Calls of numpy's functions, at most: what they were. The least of three requests, as some take a
sample more than others."""


@pytest.mark.parametrize("asked", NUMPY)
def test_a_request_calls_numpy_so_often(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()
    for name, module in list(sys.modules.items()):
        if name.startswith("service.") and getattr(module, "np", None) is np:
            monkeypatch.setattr(module, "np", Numpy(np, calls))
    policy = "linucb" if asked == "reward" else asked
    question = b'{"policy":"%s","context":{"persona":"cat"}}' % policy.encode()
    found = []
    with serving() as wire:
        door = Door(wire)
        for _ in range(4):
            token = wire.select(policy=policy)["decision_id"]
            calls.clear()
            if asked == "reward":
                door.ask("/reward", b'{"decision_id":"%s","reward":1}' % token.encode())
            else:
                door.ask("/select", question)
            found.append(Counter(calls))
    least = min(found[1:], key=Counter.total)  # the first has a head worked out
    assert 0 < least.total() <= NUMPY[asked], least


def test_a_head_is_worked_out_once_for_all_decisions_between_two_rewards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One factorisation a reward, not one a decision; rows of the catalogue are made once."""
    factorised, made = Counter[str](), Counter[str]()

    def count(counter: Counter[str], owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def counting(*arguments: Any) -> Any:
            counter[name] += len(arguments[-1]) > 1  # the row of one settlement is its own
            return whole(*arguments)

        monkeypatch.setattr(owner, name, counting)

    count(factorised, ridge, "inverse_root")
    count(made, View, "arm_part")
    with serving() as wire:
        for policy in ("linucb", "lints"):
            decision = wire.select(policy=policy)
            factorised.clear()
            made.clear()
            wire.reward(decision, 1.0)
            for _ in range(10):
                wire.select(policy=policy)
            assert factorised == {"inverse_root": 1}
            assert not +made
