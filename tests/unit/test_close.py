"""A close ends every task, also one that a cancellation passes by, and the pause of the writer."""

import asyncio
from collections.abc import Sequence

import pytest

from service.log.clock import LogClock
from service.log.commit_gate import SOME, CommitGate
from service.log.journal import Journal
from service.log.stores import open_store
from service.log.stores.base import CommitResult, DecisionRow, Entry
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.settings import Settings
from tests.support.clock import run_virtual


def test_close_ends_also_where_a_cancellation_is_swallowed() -> None:
    """As asyncio.wait_for of Python 3.11 does, in redis-py, where its work ends at that moment."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    async def run() -> None:
        journal = Journal(
            open_store("memory://"),
            Settings(store="memory://"),
            Telemetry(),
            CommitGate(),
            LogClock(),
        )
        await journal.open()
        journal.spawn(stubborn())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await journal.close()

    run_virtual(run())
    assert swallowed == 2


class Gated(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.begun.set()
        await self.gate.wait()
        return await super().commit(entries)


@pytest.mark.parametrize("in_commit", [False, True])
def test_close_does_not_wait_for_the_pause_after_a_commit(
    monkeypatch: pytest.MonkeyPatch, in_commit: bool
) -> None:
    """Whether the pause has begun by then, or would begin with the end of the commit."""
    monkeypatch.setattr("service.log.writer.APART_SECONDS", 60.0)

    async def run() -> None:
        store = Gated()
        journal = Journal(store, Settings(store="memory://"), Telemetry(), CommitGate(), LogClock())
        await journal.open()
        rows = [DecisionRow("shop", f"{number}", "linucb", b"{}") for number in range(SOME)]
        kept = [asyncio.create_task(journal.keep(row, required=True)) for row in rows]
        await store.begun.wait()
        if not in_commit:
            store.gate.set()
            await asyncio.gather(*kept)
        async with asyncio.timeout(5):
            closing = asyncio.create_task(journal.close())
            await asyncio.sleep(0.01)
            store.gate.set()
            await closing
        assert all(held.logged for held in await asyncio.gather(*kept))

    run_virtual(run())
