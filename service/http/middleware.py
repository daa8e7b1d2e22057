"""Middleware of every route: request id, bound on the body, authentication, counts."""

import logging
import re
from time import perf_counter
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import LearnersOnly, Refused, Starting
from service.http import request_id
from service.http.access import Authentication
from service.http.lifecycle import Lifecycle
from service.http.overload import PENDING_FACTORS
from service.http.problems import REFUSALS, problem, refusal, respond
from service.http.scope import CALLER, PROBES, declared_length, headers_of
from service.settings import Settings
from service.telemetry.logs import REQUEST_ID
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

VERSIONS: Final = re.compile(r"/experiments/[^/]+/policies/[^/]+/versions")
DECIDED: Final = re.compile(
    r"/(select|reward)(/batch)?|/beacon|/decisions/[^/]+/activate|/healthz|/readyz|/metrics|/sdk/.*"
)
"""Paths that a decider answers."""
METHODS: Final = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
UNCOMPRESSED: Final = (b"identity", b"")


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
        """Receive a message. Raises HTTPException where the body grows too large: a chunked one
        declares no length."""
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

    One class for all tasks: as four, each with closures over `receive` and `send`, they took twice
    the time of a request's parsing.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        authentication: Authentication,
        settings: Settings,
        lifecycle: Lifecycle,
    ) -> None:
        self._app, self._telemetry = app, telemetry
        self._authentication, self._lifecycle = authentication, lifecycle
        self._body_bytes = settings.max_body_bytes
        self._artifact_bytes = settings.max_artifact_bytes
        self._decides, self._learner = settings.role == "decider", settings.learner_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if path.endswith("/") and path[:-1] in PENDING_FACTORS:
            path = scope["path"] = path[:-1]
        name = request_id.of(scope)
        REQUEST_ID.set(name)  # for the server too: it logs a bug in the same task
        start = perf_counter()
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
            if self._lifecycle.starting and scope["path"] not in PROBES:
                raise Starting
            if self._decides and not DECIDED.fullmatch(scope["path"]):
                raise LearnersOnly(self._learner)
        except Refused as fault:
            await refusal(fault)(scope, exchange.receive, exchange.send)
            return
        if caller is not None:
            scope[CALLER] = caller
            exchange.limit = min(exchange.limit, caller.grant.profile.body_bytes)
        encodings = headers_of(scope).get(b"content-encoding")
        if encodings is not None and encodings[-1].strip().lower() not in UNCOMPRESSED:
            encoded = respond(problem(415, *REFUSALS[415], "send it without Content-Encoding"))
            encoded.headers["Accept-Encoding"] = "identity"
            await encoded(scope, exchange.receive, exchange.send)
        elif scope["method"] != "HEAD":
            await self._app(scope, exchange.receive, exchange.send)
        else:
            as_get = {**scope, "method": "GET"}  # uvicorn sends no body
            await self._app(as_get, exchange.receive, exchange.send)
            scope["route"] = as_get.get("route")

    def _count(self, scope: Scope, status: int, start: float) -> None:
        route: str = getattr(scope.get("route"), "path", "unmatched").replace(":id}", "}")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._telemetry.requests.labels(route, method, str(status)).inc()
        # A 503 is no fault of its request: what caused it is reported when it begins and ends.
        level = logging.WARNING if status >= 500 and status != 503 else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s %s answered %d after %.1f ms",
                scope["method"],
                route,  # not the path: it may name a unit
                status,
                1_000 * (perf_counter() - start),
            )
