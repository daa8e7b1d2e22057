"""A close ends every task, also one that swallows a cancellation."""

import asyncio

from service.log.clock import LogClock
from service.log.commit_gate import CommitGate
from service.log.journal import Journal
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
        settings = Settings(store="memory://")
        journal = Journal(MemoryStore(), settings, Telemetry(), CommitGate(), LogClock())
        await journal.open()
        journal.background.spawn(stubborn())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await journal.close()

    run_virtual(run())
    assert swallowed == 2
