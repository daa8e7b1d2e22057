"""What stands before every route: a bound on the body, a count of requests by route and status."""

import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.problems import REFUSALS, problem, respond
from service.http.scope import declared_length
from service.observability.telemetry import Telemetry


class BodyLimitMiddleware:
    """ASGI middleware. A body is refused by its declared length, or where it grows beyond the bound
    while it is read (chunked bodies declare none). Where versions are handed over, the bound is
    `artifact_bytes`.
    """

    def __init__(
        self, app: ASGIApp, telemetry: Telemetry, body_bytes: int, artifact_bytes: int
    ) -> None:
        self._app, self._telemetry = app, telemetry
        self._body_bytes, self._artifact_bytes = body_bytes, artifact_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        artifact = path.endswith("/versions") and VERSIONS.fullmatch(path)
        limit = self._artifact_bytes if artifact else self._body_bytes
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if declared_length(scope) > limit:
                answer = respond(problem(413, *REFUSALS[413], f"at most {limit} bytes"))
                await answer(scope, receive, watch)
            else:
                await self._app(scope, bounded(receive, limit), watch)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._telemetry.requests.labels(route, _method(scope), str(status)).inc()


VERSIONS = re.compile(r"/experiments/[^/]+/policies/[^/]+/versions")
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else "other"


def bounded(receive: Receive, limit: float) -> Receive:
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise HTTPException(413, f"at most {limit} bytes")
        return message

    return bounded
