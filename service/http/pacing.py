"""Requests take turns, so that a burst of one caller does not hold up the others.

Every request that the framework serves takes the event loop for a millisecond or more. If a hundred
arrive at once, the loop would serve them all before it looks at its sockets again, and a decision
that takes 0.1 ms would wait for them. So after `TURN_SECONDS` the others wait: one of them starts
in each further turn of the loop, each caller in rotation.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.scope import CALLER, PROBES
from service.security.access import Caller

TURN_SECONDS: Final = 0.002


class Pacing:
    """Requests that start in one turn of the event loop."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next caller first
        self._until: float | None = None  # None: nothing has started in this turn

    async def start(self, caller: str) -> None:
        """Return when a request of this caller may start."""
        if self._until is None:
            self._until = self._clock() + TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._next_turn)
        elif self._waiting or self._clock() > self._until:
            called = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(caller, deque()).append(called)
            await called

    def _next_turn(self) -> None:
        self._until = None
        while self._waiting:
            caller, own = next(iter(self._waiting.items()))
            del self._waiting[caller]
            called = own.popleft()
            if own:
                self._waiting[caller] = own
            if not called.done():  # a caller that has gone leaves a cancelled future
                called.set_result(None)
                self._until = self._clock() + TURN_SECONDS
                asyncio.get_running_loop().call_soon(self._next_turn)
                return


class PacingMiddleware:
    """ASGI middleware: each request takes its turn, but for probes."""

    def __init__(self, app: ASGIApp, pacing: Pacing) -> None:
        self._app, self._pacing = app, pacing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES:
            caller: Caller | None = scope.get(CALLER)
            await self._pacing.start(caller.grant.id if caller else "")
        await self._app(scope, receive, send)
