"""A request asks its store once: what it keeps goes into one commit."""

from collections.abc import Sequence

import pytest

from service.stores.base import Entry, Outcome
from service.stores.memory import MemoryStore
from tests.support.service import serving


class Counting(MemoryStore):
    """Knows how many entries each commit had."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[int] = []

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        self.commits.append(len(entries))
        return await super().commit(entries)


@pytest.mark.parametrize("policy", ["linucb", "lints"])
def test_a_decision_and_its_reward_are_a_commit_each(policy: str) -> None:
    store = Counting()
    with serving(store) as wire:
        store.commits.clear()
        decision = wire.select(policy=policy)
        assert store.commits == [1]
        wire.reward(decision, 1.0)
        assert store.commits == [1, 1]
