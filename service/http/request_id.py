"""An id for each request: the caller's `X-Request-ID` or one of ours, in the answer and the log."""

import logging
import re
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, get_contextvars, reset_contextvars

from service.entropy import Entropy

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:/+=@-]{0,127}")
"""What is taken from a caller; anything else is answered under an id of ours."""

_entropy = Entropy()


def current() -> str:
    """The id of the request under way; where it has none yet (the hot path), a new one."""
    bound = get_contextvars().get("request_id")
    return bound if isinstance(bound, str) else made()


def made() -> str:
    return f"{_entropy.getrandbits(64):016x}"


class RequestIds:
    """ASGI middleware around everything else: every log line on the way has the id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        name = given if SANE.fullmatch(given) else made()
        status, start = 500, perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        bound = bind_contextvars(request_id=name)
        try:
            await self._app(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            probe = route == "/readyz"  # asked every second, and not ready for a reason
            logger.log(
                logging.WARNING if status >= 500 and not probe else logging.DEBUG,
                "%s %s answered %d after %.1f ms",
                scope["method"],
                route,  # not the path: it may name a unit
                status,
                1_000 * (perf_counter() - start),
            )
        reset_contextvars(**bound)  # not after a bug: the server logs that, in the same task
