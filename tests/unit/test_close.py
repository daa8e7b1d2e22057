"""A close ends every task, also one that a cancellation passes by."""

import asyncio

from service.journal import Journal
from service.settings import Settings
from service.stores import open_store
from service.telemetry import Telemetry


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
        journal = Journal(open_store("memory://"), Settings(store="memory://"), Telemetry())
        await journal.open()
        journal.spawn(stubborn())
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await journal.close()

    asyncio.run(run())
    assert swallowed == 2
