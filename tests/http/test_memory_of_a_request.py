"""What a request leaves in memory: nothing that grows.

Counted are blocks of CPython's own allocator (`sys.getallocatedblocks`): what the operating system
says a process holds depends on its allocator, on the size of pages, and on what other tests left.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.plug import Plug
from tests.support.service import Wire, serving

pytestmark = [pytest.mark.process, pytest.mark.no_cover]  # what measures coverage allocates as well

HEADERS = {"Content-Type": "application/json"}
REQUESTS, BATCHES = 150, 12
LEFT = REQUESTS // 4
"""Blocks that a batch may leave. What is kept for each request leaves one a request at least, in
every batch; samples, histories and caches fill up, mostly in six batches, then 20 are left."""


class Forgetful(MemoryStore):
    """Forgets on demand what it keeps for good, but for the newest of each."""

    def forget_all(self) -> None:
        for kept in self._experiments.values():
            for held in (
                *(kept.events, kept.decisions, kept.numbers, kept.waiting),
                *(kept.marks, kept.keep_until),
            ):
                _forget(held)
            kept.settled.clear()


def _forget(held: dict[Any, Any]) -> None:
    for name in list(held)[:-1]:
        del held[name]


class Client:
    """Asks by the protocol's own door, and knows the tokens of its decisions."""

    def __init__(self, wire: Wire, store: Forgetful) -> None:
        self._plug, self._store = Plug(wire), store

    def select(self, policy: str) -> bytes:
        body = b'{"policy":"%s","context":{"persona":"cat"}}' % policy.encode()
        token: str = self._post("/select", body)["decision_id"]
        return token.encode()

    def reward(self, token: bytes) -> None:
        body = b'{"decision_id":"%s","reward":1}' % token
        assert self._post("/reward", body)["status"] == "accepted"

    def _post(self, path: str, body: bytes) -> dict[str, str]:
        answer = self._plug.post(path, body, HEADERS)
        assert answer.status_code == 200
        found: dict[str, str] = answer.json()
        return found

    def blocks(self) -> int:
        """Allocated now, without what the log keeps and without garbage."""
        self._store.forget_all()
        gc.collect()
        return sys.getallocatedblocks()


@pytest.fixture
def client() -> Iterator[Client]:
    store = Forgetful()
    with serving(store) as wire:
        yield Client(wire, store)


@pytest.mark.parametrize("policy", ["linucb", "lints"])
def test_a_decision_leaves_nothing_but_its_row(client: Client, policy: str) -> None:
    def batch() -> int:
        before = client.blocks()
        for _ in range(REQUESTS):
            client.select(policy)
        return client.blocks() - before

    expect_no_growth(batch)


@pytest.mark.parametrize("policy", ["linucb", "lints"])
def test_a_reward_leaves_nothing_but_its_event_and_marks(client: Client, policy: str) -> None:
    def batch() -> int:
        tokens = [client.select(policy) for _ in range(REQUESTS)]
        before = client.blocks()
        for token in tokens:
            client.reward(token)
        return client.blocks() - before

    expect_no_growth(batch)


def expect_no_growth(batch: Callable[[], int]) -> None:
    left: list[int] = []
    while not left or left[-1] > LEFT:
        assert len(left) < BATCHES, left
        left.append(batch())
