"""Keys before every route: which scope a request needs, and the middleware that asks for it."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from service.access import GRANT, Access, Grant, Headers
from service.errors import Refused
from service.http.problems import MEDIA_TYPE, refusal
from service.keys import KeyScope

FREE: Final = "free"
"""For everybody: probes, descriptions, pages and scripts, none of which tells what is served."""

Needed = KeyScope | Literal["free"]


class Row(NamedTuple):
    """Requests of these methods, to paths of this pattern, whole."""

    methods: frozenset[str]
    path: re.Pattern[str]
    needs: Needed


def _row(methods: str, path: str, needs: Needed) -> Row:
    return Row(frozenset(methods.split()), re.compile(path), needs)


ANY: Final = "GET HEAD POST PUT PATCH DELETE"

SCOPES: Final = (
    _row("POST", r"/select(/batch)?", "select"),
    _row("POST", r"/reward(/batch)?", "reward"),
    _row("POST", r"/decisions/[^/]+/activate", "reward"),
    _row("GET HEAD", r"/metrics", "metrics"),
    _row("GET HEAD", r"/(healthz|readyz|docs|docs/oauth2-redirect|redoc|openapi\.json)", FREE),
    _row("GET HEAD", r"/|/(sdk|demo|console)(/.*)?", FREE),
    _row(ANY, r"/(experiments|arms|policies|decisions)(/.*)?", "admin"),
    _row(ANY, r"/(units|import|status)(/.*)?", "admin"),
)  # fmt: skip
"""The first that fits holds. What none fits, needs the scope admin: a route that was forgotten
here is closed, not open."""


def row_of(method: str, path: str) -> Row | None:
    for row in SCOPES:
        if method in row.methods and row.path.fullmatch(path):
            return row
    return None


def needs(method: str, path: str) -> Needed:
    """path: decoded, as the routes are looked up by it."""
    if method == "OPTIONS":
        return FREE  # a browser asks before it sends a key; no route answers to it
    row = row_of(method, path)
    return "admin" if row is None else row.needs


SAFE: Final = {"GET", "HEAD", "OPTIONS"}
FOREIGN: Final = {b"cross-site", b"same-site"}
"""What a browser says in `Sec-Fetch-Site` of a request by a page of another origin."""


class Doorkeeper:
    """ASGI middleware: in front of whatever looks at a request's content.

    Without keys, whoever reaches the service may ask, and a page in a browser on this host reaches
    it: one of another origin is refused what changes something, unless its origin is listed.
    """

    def __init__(self, app: ASGIApp, access: Access, origins: Iterable[str] = ()) -> None:
        self._app, self._access = app, access
        self._origins = frozenset(each.encode() for each in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not self._access.required:
            if self._is_foreign(scope):
                await refusal(self._access.foreign_page())(scope, receive, send)
            else:
                await self._app(scope, receive, send)
            return
        try:
            grant = self._admit(scope)
        except Refused as fault:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refusal(fault)(scope, receive, send)
            return
        before = GRANT.set(grant)
        try:
            await self._app(scope, receive, send)
        finally:
            GRANT.reset(before)

    def _is_foreign(self, scope: Scope) -> bool:
        if scope.get("method", "GET") in SAFE:
            return False
        sent = dict(scope["headers"])
        return sent.get(b"sec-fetch-site") in FOREIGN and sent.get(b"origin") not in self._origins

    def _admit(self, scope: Scope) -> Grant:
        needed = needs(scope.get("method", "GET"), scope["path"])
        if needed == FREE:
            return self._access.nobody
        headers: Headers = scope["headers"]
        return self._access.admit(headers, needed)


DECLARED: Final = {
    401: "There is no key, or not one that holds.",
    403: "The key is not good for this.",
    429: "More requests than the rate of the key: try again after `Retry-After` seconds.",
}
SCHEMES: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "`Authorization: Bearer fk_...`: a key with the scope that is named.",
    },
    "header": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same, where something in between needs `Authorization` for itself.",
    },
}


def declare(document: dict[str, Any], *, required: bool) -> None:
    """Write into an OpenAPI document what keys are needed for, and how they are refused."""
    document["components"]["securitySchemes"] = SCHEMES
    for method, path, operation in _operations(document):
        needed = needs(method, path)
        if needed == FREE:
            operation["security"] = []
            continue
        operation["security"] = [{name: [needed]} for name in SCHEMES] + [{}] * (not required)
        for status, description in DECLARED.items():
            content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            operation["responses"][str(status)] = {"description": description, "content": content}


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation
