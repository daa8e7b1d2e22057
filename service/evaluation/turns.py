"""One at a time, and each tenant in his turn, however many he asks for."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import Busy


class Turns:
    """Of tenants who wait, each has a turn before any has his next.

    most   that may wait, of one tenant
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn is next, first
        self.busy = False

    def ahead(self, tenant: str) -> int:
        """Turns before that of one more of this tenant."""
        own = len(self._waiting.get(tenant, ()))
        before = list(self._waiting)
        late = before[: before.index(tenant)] if tenant in before else before
        others = sum(
            min(len(waiting), own + (other in late))
            for other, waiting in self._waiting.items()
            if other != tenant
        )
        return self.busy + own + others

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[int]:
        """Wait for one's turn; how many came before it. Raises Busy where too many wait."""
        ahead = self.ahead(tenant)
        if ahead:
            await self._wait(tenant)
        self.busy = True
        try:
            yield ahead
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        own = self._waiting.setdefault(tenant, deque())
        if len(own) >= self._most:
            raise Busy(
                f"{self._most} of this experiment wait already: ask again when one has ended"
            )
        called = asyncio.get_running_loop().create_future()
        own.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._pass_on()  # it was called, and has gone
            else:
                own.remove(called)
                if not own:
                    del self._waiting[tenant]
            raise

    def _pass_on(self) -> None:
        """Call the next; he is at work from now on, whenever he notices."""
        self.busy = bool(self._waiting)
        if not self._waiting:
            return
        tenant, own = next(iter(self._waiting.items()))
        del self._waiting[tenant]
        own.popleft().set_result(None)
        if own:
            self._waiting[tenant] = own
