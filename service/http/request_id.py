"""An id for each request: the caller's `X-Request-ID` or one of ours, in the answer and the log."""

import logging
import re
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.scope import headers_of
from service.observability.logs import REQUEST_ID
from service.security.entropy import Entropy

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"
NAME = b"x-request-id"
SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:/+=@-]{0,127}")
"""What is taken from a caller; anything else is answered under an id of ours."""

_entropy = Entropy()


def current() -> str:
    """The id of the request under way, or a new one where there is none."""
    return REQUEST_ID.get(None) or made()


def made() -> str:
    return f"{_entropy.getrandbits(64):016x}"


class RequestIdMiddleware:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = headers_of(scope).get(NAME)
        text = given[-1].decode("latin-1") if given else ""
        name = text if SANE.fullmatch(text) else made()
        status, start = 500, perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [each for each in message["headers"] if each[0] != NAME]
                message["headers"] = [*headers, (NAME, name.encode())]
            await send(message)

        REQUEST_ID.set(name)  # for the server as well, which logs a bug in the same task
        try:
            await self._app(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            probe = route == "/readyz"  # asked every second, and not ready for a reason
            level = logging.WARNING if status >= 500 and not probe else logging.DEBUG
            if logger.isEnabledFor(level):
                logger.log(
                    level,
                    "%s %s answered %d after %.1f ms",
                    scope["method"],
                    route,  # not the path: it may name a unit
                    status,
                    1_000 * (perf_counter() - start),
                )
