"""What every request needs, whatever its route: an id, a bound on its body, a judged caller, a
count."""

import logging
import re
from time import perf_counter
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Refused
from service.http import request_id
from service.http.access import Authentication
from service.http.load_shedding import LoadShedding, refuse
from service.http.pacing import Pacing
from service.http.problems import REFUSALS, problem, refusal, respond
from service.http.scope import CALLER, PROBES, declared_length
from service.observability.logs import REQUEST_ID
from service.observability.telemetry import Telemetry

logger = logging.getLogger(__name__)

VERSIONS: Final = re.compile(r"/experiments/[^/]+/policies/[^/]+/versions")
METHODS: Final = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
REFUSED: Final = "refused"
"""The name under which all refused requests take their turns."""


def method_of(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else "other"


class _Exchange:
    """One request and its answer.

    limit    bytes that the body may have
    status   of the answer; 500 until it begins
    """

    __slots__ = ("_id", "_read", "_receive", "_send", "limit", "status")

    def __init__(self, receive: Receive, send: Send, id: str, limit: float) -> None:
        self._receive, self._send, self._id = receive, send, id
        self.limit = limit
        self.status = 500
        self._read = 0

    async def receive(self) -> Message:
        """Raises HTTPException where the body grows too large: a chunked one declares no length."""
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > self.limit:
            raise HTTPException(413, f"at most {self.limit} bytes")
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = request_id.write(message["headers"], self._id)
        await self._send(message)


class RequestMiddleware:
    """ASGI middleware in front of every route.

    One class for all four tasks: as four, each with closures over `receive` and `send`, they took
    twice the time of a request's parsing.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        authentication: Authentication,
        pacing: Pacing,
        shedding: LoadShedding,
        *,
        body_bytes: int,
        artifact_bytes: int,
    ) -> None:
        self._app, self._telemetry = app, telemetry
        self._authentication, self._pacing, self._shedding = authentication, pacing, shedding
        self._body_bytes, self._artifact_bytes = body_bytes, artifact_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        name = request_id.of(scope)
        if self._shedding.overloaded and scope["method"] == "POST" and self._shedding.refuses(path):
            await refuse(send, name)
            return
        start = perf_counter()
        REQUEST_ID.set(name)  # for the server too: it logs a bug in the same task
        exchange = _Exchange(receive, send, name, self._limit(path))
        try:
            await self._serve(scope, exchange)
        finally:
            self._count(scope, exchange.status, start)

    def _limit(self, path: str) -> int:
        artifact = path.endswith("/versions") and VERSIONS.fullmatch(path)
        return self._artifact_bytes if artifact else self._body_bytes

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        if declared_length(scope) > exchange.limit:
            too_large = problem(413, *REFUSALS[413], f"at most {exchange.limit} bytes")
            await respond(too_large)(scope, exchange.receive, exchange.send)
            return
        try:
            caller = self._authentication.admit(scope)
        except Refused as fault:
            await self._pacing.start(REFUSED)
            await refusal(fault)(scope, exchange.receive, exchange.send)
            return
        if caller is not None:
            scope[CALLER] = caller
            exchange.limit = min(exchange.limit, caller.grant.profile.body_bytes)
        await self._app(scope, exchange.receive, exchange.send)

    def _count(self, scope: Scope, status: int, start: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._telemetry.requests.labels(route, method_of(scope), str(status)).inc()
        probe = route in PROBES  # asked every second, and refused for a reason
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
