"""Keys before every route: which scope a request needs, and whether it has it."""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from service.errors import TooLarge
from service.http.problems import MEDIA_TYPE
from service.http.services import Services
from service.security.access import Caller
from service.security.addresses import Headers
from service.security.keys import KeyScope

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


def caller_of(
    services: Services,
    client: tuple[str, int] | None,
    headers: Headers,
    needed: KeyScope,
    length: int,
) -> Caller:
    """Judge the key in these headers, and charge it one request. Raises Refused.

    length   of the body, in bytes
    """
    grant = services.access.admit(headers, needed)
    caller = Caller(grant, services.addresses.of(client[0] if client else None, headers))
    most = grant.profile.body_bytes
    if length > most:
        raise TooLarge(f"at most {most} bytes with this key")
    services.access.charge(caller, BASE_COST)
    return caller


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
