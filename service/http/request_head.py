"""The head of a request, as every check reads it."""

from collections.abc import Sequence
from typing import Final

CALLER: Final = "forage.caller"
"""Key of the scope under which a route finds its caller."""

PROBES: Final = {"/healthz", "/readyz"}
"""Routes for load balancers: answered for any host, and there without the names of experiments."""

LENGTH_DIGITS: Final = 18
"""Digits of an integer of 64 bits. Python reads no integer of more than 4,300 digits."""

Fields = list[tuple[bytes, bytes]]
"""Header fields, with names in lower case."""


class RequestHead:
    """The head of a request.

    path     decoded
    values   of each header by its name, in the order in which they came
    client   address and port of the peer; None where they are unknown
    """

    __slots__ = ("client", "fields", "method", "path", "scheme", "values")

    def __init__(
        self,
        method: str,
        path: str,
        fields: Fields,
        scheme: str = "http",
        client: tuple[str, int] | None = None,
    ) -> None:
        self.method, self.path, self.fields = method, path, fields
        self.scheme, self.client = scheme, client
        self.values: dict[bytes, list[bytes]] = {}
        for name, value in fields:
            if name in self.values:
                self.values[name].append(value)
            else:
                self.values[name] = [value]

    def all(self, name: bytes) -> Sequence[bytes]:
        return self.values.get(name, ())

    def last(self, name: bytes) -> bytes:
        """Return the last value of a header, and nothing for one that was not sent."""
        found = self.values.get(name)
        return b"" if found is None else found[-1]

    def declared_length(self) -> int:
        """Return the value of `Content-Length`: 0 without one, and more than any bound for a length
        that no body can have."""
        values = self.values.get(b"content-length")
        return 0 if values is None else max(map(_length, values))


def _length(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= LENGTH_DIGITS else 10**LENGTH_DIGITS
