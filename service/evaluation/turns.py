"""One at a time, and the tenants in turn, however many each asks for."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from service.errors import Busy


class Turns:
    """Round-robin: of each tenant one waits for the current turn to end, in order of arrival, and
    the others wait for that one.

    most   that may wait, of one tenant
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._current = asyncio.Lock()
        self._next = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._waiting = Counter[str]()
        self._begun = 0

    @property
    def busy(self) -> bool:
        return self._current.locked()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[int]:
        """Wait for a turn; yields how many came before it. Raises Busy where too many wait."""
        if self._waiting[tenant] >= self._most:
            raise Busy(
                f"{self._most} of this experiment wait already: ask again when one has ended"
            )
        begun = self._begun - self.busy
        self._waiting[tenant] += 1
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._next[tenant])
                await stack.enter_async_context(self._current)
            finally:
                self._waiting[tenant] -= 1
            self._begun += 1
            yield self._begun - 1 - begun
