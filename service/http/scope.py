"""Values in the scope of a request that several modules read or write."""

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

CALLER: Final = "forage.caller"
"""Key of the scope under which a route finds its caller."""

PROBES: Final = {"/healthz", "/readyz"}
"""Routes for load balancers: answered for any host, and there without the names of experiments."""

LENGTH_DIGITS: Final = 18
"""Digits of an integer of 64 bits. Python reads no integer of more than 4,300 digits."""

_HEADERS: Final = "forage.headers"


def headers_of(scope: Scope) -> Mapping[bytes, list[bytes]]:
    """Return the values of each header by its name in lower case, gathered once for a request."""
    found: dict[bytes, list[bytes]] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = {}
        for name, value in scope["headers"]:
            if name in found:
                found[name].append(value)
            else:
                found[name] = [value]
    return found


def declared_length(scope: Scope) -> int:
    """Return the value of `Content-Length`: 0 without one, and more than any bound for a length
    that no body can have."""
    values = headers_of(scope).get(b"content-length", ())
    return max(map(_length, values), default=0)


def _length(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= LENGTH_DIGITS else 10**LENGTH_DIGITS
