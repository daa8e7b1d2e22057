"""What several places read from the scope of a request, or write into it."""

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

CALLER: Final = "forage.caller"
"""Key of the scope under which a route finds its caller."""

PROBES: Final = {"/healthz", "/readyz"}
"""What a balancer asks, under any name of the service: answered for any host, without the names of
experiments, and at once."""

LENGTH_DIGITS: Final = 18
"""Of an integer of 64 bits. Python reads no integer of more than 4,300 digits."""

_HEADERS: Final = "forage.headers"


def headers_of(scope: Scope) -> Mapping[bytes, list[bytes]]:
    """Values by name, in lower case. Gathered once for a request."""
    found: dict[bytes, list[bytes]] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = {}
        for name, value in scope["headers"]:
            if name in found:
                found[name].append(value)
            else:
                found[name] = [value]
    return found


def with_headers(scope: Scope, headers: list[tuple[bytes, bytes]]) -> Scope:
    """A scope of the same request with other headers."""
    return {
        **{name: value for name, value in scope.items() if name != _HEADERS},
        "headers": headers,
    }


def declared_length(scope: Scope) -> int:
    """What `Content-Length` says: 0 where there is none, and more than any bound where no body
    could have that length."""
    values = headers_of(scope).get(b"content-length", ())
    return max(map(_length, values), default=0)


def _length(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= LENGTH_DIGITS else 10**LENGTH_DIGITS
