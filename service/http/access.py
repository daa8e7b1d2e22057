"""Keys before every route: which scope a request needs, and whether it has it."""

import logging
import re
from collections.abc import Awaitable, Iterator
from math import inf
from typing import Any, Final, Literal, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from service.clock import Clock
from service.errors import ForeignOrigin, Misdirected, TooLarge
from service.http.problems import MEDIA_TYPE
from service.http.scope import PROBES, declared_length, headers_of
from service.security.access import Access, Caller
from service.security.addresses import Addresses, Headers
from service.security.hosts import Hosts
from service.security.keys import KeyScope

logger = logging.getLogger(__name__)

NO_KEY: Final = "free"
"""Scope of what needs no key: probes, descriptions, pages and scripts, which do not name
experiments."""

Needed = KeyScope | Literal["free"]

BASE_COST: Final = 1
"""Cost of every request before its body is read."""


class RouteScope(NamedTuple):
    """Requests of these methods, to paths of this pattern, whole."""

    methods: frozenset[str]
    path: re.Pattern[str]
    needs: Needed


def _row(methods: str, path: str, needs: Needed) -> RouteScope:
    return RouteScope(frozenset(methods.split()), re.compile(path), needs)


ANY: Final = "GET HEAD POST PUT PATCH DELETE"

SCOPES: Final = (
    _row("POST", r"/select(/batch)?", "select"),
    _row("POST", r"/reward(/batch)?", "reward"),
    _row("POST", r"/decisions/[^/]+/activate", "reward"),
    _row("POST", r"/beacon", NO_KEY),  # its key is in its body
    _row("GET HEAD", r"/metrics", "metrics"),
    _row("GET HEAD", r"/(healthz|readyz|openapi\.json)", NO_KEY),
    _row("GET HEAD", r"/|/(sdk|demo|console)(/.*)?", NO_KEY),
    _row("GET HEAD", r"/docs(/(docs\.js|vendor/[\w.-]+)?)?", NO_KEY),
    _row(ANY, r"/(experiments|arms|policies|decisions)(/.*)?", "admin"),
    _row(ANY, r"/(units|import|status)(/.*)?", "admin"),
)  # fmt: skip
"""Scopes of routes; the first that fits holds. What none fits, needs the scope admin: a route that
was forgotten here is closed, not open."""


def row_of(method: str, path: str) -> RouteScope | None:
    for row in SCOPES:
        if method in row.methods and row.path.fullmatch(path):
            return row
    return None


def needs(method: str, path: str) -> Needed:
    """Return what a route needs. path: decoded, as the routes are looked up by it."""
    if method == "OPTIONS":
        return NO_KEY  # a browser asks before it sends a key; no route answers to it
    row = row_of(method, path)
    return "admin" if row is None else row.needs


SAFE: Final = {"GET", "HEAD", "OPTIONS"}


class Authentication:
    """Judges a request before anything looks at its content.

    A request has to name a host of this service, a page has to be of an origin that may change
    something, and where keys are required, a key has to be good for the route.
    """

    def __init__(self, access: Access, hosts: Hosts, addresses: Addresses) -> None:
        self._access, self._hosts, self._addresses = access, hosts, addresses

    def admit(self, scope: Scope) -> Caller | None:
        """Admit the caller of a request; None: keys are off. Raises Refused."""
        method = scope.get("method", "GET")
        if not self._hosts.serves(headers_of(scope).get(b"host", ())):
            if method in SAFE and scope["path"] in PROBES:
                return Caller(self._access.nobody)
            detail = "list the host that requests name in FORAGE_ALLOWED_HOSTS"
            raise self._access.count("host", Misdirected(detail))
        caller = self._by_key(scope, method) if self._access.required else None
        if method in SAFE or (caller is not None and caller.grant.origins):
            return caller  # a key that lists origins was held against them
        if self._is_foreign(scope):
            detail = "this page is of another origin: list it in FORAGE_CORS_ORIGINS"
            raise self._access.count("origin", ForeignOrigin(detail))
        return caller

    def _is_foreign(self, scope: Scope) -> bool:
        """Say whether a page of another origin sent the request."""
        headers = headers_of(scope)
        origins, sites = headers.get(b"origin", ()), headers.get(b"sec-fetch-site")
        if not origins and sites is None:
            return False
        site, hosts = sites[-1] if sites else None, headers.get(b"host", ())
        return self._hosts.is_foreign(origins, hosts, scope.get("scheme", "http"), site)

    def _by_key(self, scope: Scope, method: str) -> Caller:
        needed = needs(method, scope["path"])
        if needed == NO_KEY:
            return Caller(self._access.nobody)
        return self.caller_of(scope, scope["headers"], needed, declared_length(scope))

    def caller_of(self, scope: Scope, headers: Headers, needed: KeyScope, length: int) -> Caller:
        """Judge the key in these headers, and charge it one request. Raises Refused.

        length   of the body, in bytes
        """
        peer: tuple[str, int] | None = scope.get("client")
        grant = self._access.admit(headers, needed)
        caller = Caller(grant, self._addresses.of(peer[0] if peer else None, headers))
        most = grant.profile.body_bytes
        if length > most:
            raise TooLarge(f"at most {most} bytes with this key")
        self._access.charge(caller, BASE_COST)
        return caller


LOG_SECONDS: Final = 60.0
LOGGED_ORIGINS: Final = 256


class OriginLog:
    """ASGI middleware that logs the origins of pages that may not ask: their visitors' browsers
    hide the answer. Each origin at most once in LOG_SECONDS, and at most LOGGED_ORIGINS of them."""

    def __init__(self, app: ASGIApp, hosts: Hosts, clock: Clock) -> None:
        self._app, self._hosts, self._clock = app, hosts, clock
        self._again: dict[bytes, float] = {}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass an admitted request on. This is no coroutine: one would cost every decision a
        microsecond."""
        if scope["type"] == "http" and (origins := headers_of(scope).get(b"origin")):
            hosts, public = headers_of(scope).get(b"host", ()), scope["path"].startswith("/sdk/")
            if not public and self._hosts.is_foreign(origins, hosts, scope["scheme"], None):
                self._log(origins[-1])
        return self._app(scope, receive, send)

    def _log(self, origin: bytes) -> None:
        now = self._clock.monotonic()
        if now < self._again.get(origin, -inf):
            return
        if len(self._again) >= LOGGED_ORIGINS:
            self._again = {each: again for each, again in self._again.items() if now < again}
        if len(self._again) < LOGGED_ORIGINS:
            self._again[origin] = now + LOG_SECONDS
            logger.warning(
                "pages of the origin %.200s may not ask: if they should, list it in "
                "FORAGE_CORS_ORIGINS",
                origin.decode("latin-1"),
            )


DECLARED: Final = {
    401: "There is no key, or not one that holds.",
    403: "The key lacks permission, or the origin of the page is not allowed.",
    421: "The request names a host that is not this service's.",
    429: "More requests than the rate of the key: try again after `Retry-After` seconds.",
    503: "The service is starting: try again after `Retry-After` seconds.",
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
        if needed == NO_KEY:
            operation["security"] = []
            continue
        operation["security"] = [{name: [needed]} for name in SCHEMES] + [{}] * (not required)
        for status, description in DECLARED.items():
            content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            declared = {"description": description, "content": content}
            operation["responses"].setdefault(str(status), declared)


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation
