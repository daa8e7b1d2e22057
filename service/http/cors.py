"""Pages of other origins: which may ask, what they may read, and a log of those that may not.

There are no credentials: a key goes in a header, so no answer depends on a cookie that another site
could have the browser send.
"""

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from service.clock import Clock
from service.http import request_id
from service.http.overload import READABLE
from service.http.request_head import Fields, RequestHead
from service.security.hosts import Hosts

logger = logging.getLogger(__name__)

ALLOWED_HEADERS: Final = (
    "Authorization", "Content-Type", "Idempotency-Key", "If-Match", "X-API-Key",
    "X-Envoy-Expected-Rq-Timeout-Ms", request_id.HEADER,
)  # fmt: skip
"""Request headers that the documentation names: a preflight for any other is refused."""

PREFLIGHT_SECONDS: Final = 7_200
"""Seconds for which a browser remembers a preflight; no browser keeps it longer."""

LOG_SECONDS: Final = 60.0
LOGGED_ORIGINS: Final = 256


class Cors:
    """The origins that a service lists."""

    def __init__(self, origins: Sequence[str], hosts: Hosts, clock: Clock) -> None:
        self._hosts, self._clock = hosts, clock
        self._again: dict[bytes, float] = {}
        vary = (b"vary", b"Origin")
        readable = (b"access-control-expose-headers", ", ".join(READABLE).encode())
        self._own: Fields = [vary] if origins else []
        self._others: Fields = [readable, vary] if origins else []
        self._listed: dict[bytes, Fields] = {}
        for origin in origins:
            allowed = (b"access-control-allow-origin", origin.encode())
            self._listed[origin.encode()] = [readable, allowed, vary]
        self._preflights = CORSMiddleware(
            PlainTextResponse(),
            allow_origins=list(origins),
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=ALLOWED_HEADERS,
            max_age=PREFLIGHT_SECONDS,
        )

    def preflight(self, head: RequestHead) -> Response | None:
        """Answer a browser that asks whether a page may ask; None: this is another request. It
        passes no check, has no id, and is not counted."""
        asks = b"origin" in head.values and b"access-control-request-method" in head.values
        if not self._own or head.method != "OPTIONS" or not asks:
            return None
        self.note(head)
        return self._preflights.preflight_response(Headers(raw=head.fields))

    def dress(self, head: RequestHead, fields: Fields) -> None:
        """Add to an answer what the browser of its caller has to know, refusals included."""
        origins = head.values.get(b"origin")
        added = self._own if origins is None else self._listed.get(origins[0], self._others)
        for name, value in added:
            same = [at for at, field in enumerate(fields) if field[0] == name]
            if not same:
                fields.append((name, value))
            elif name == b"vary":
                fields[same[0]] = name, b"%b, %b" % (fields[same[0]][1], value)
            else:
                fields[same[0]] = name, value

    def note(self, head: RequestHead) -> None:
        """Log the origin of a page that may not ask: its visitors' browsers hide the answer. Each
        at most once in LOG_SECONDS, and at most LOGGED_ORIGINS of them."""
        origins = head.values.get(b"origin")
        if origins is None or head.path.startswith("/sdk/"):  # which is for all pages
            return
        if not self._hosts.is_foreign(origins, head.all(b"host"), head.scheme, None):
            return
        now, origin = self._clock.monotonic(), origins[-1]
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
