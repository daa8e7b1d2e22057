"""Refusals of decisions and rewards while too many are under way.

Each refusal takes processor time from the decisions that are served. The protocol asks for it once
it has read the head of a request, before uvicorn and the application spend any time on it.
"""

import asyncio
import logging
from math import inf
from typing import Final, NamedTuple

from starlette.responses import JSONResponse

from service.errors import Overloaded
from service.http import request_id
from service.http.problems import MEDIA_TYPE, RETRY_AFTER_SECONDS, problem_of
from service.http.request_head import Fields
from service.settings import Settings
from service.telemetry.metrics import Count, Telemetry

logger = logging.getLogger(__name__)

PENDING_FACTORS: Final = {
    "/select": 1, "/select/batch": 1, "/reward": 2, "/reward/batch": 2, "/beacon": 2,
}  # fmt: skip
"""Multiples of FORAGE_MAX_PENDING beyond which a route is refused: a reward whose sender does not
repeat it is lost, where a decision has a fallback."""

REPORT_SECONDS: Final = 60.0
"""Seconds between two log lines that say that requests were refused."""

READABLE: Final = ("Retry-After", "ETag", request_id.HEADER)
"""Headers of answers that pages of other origins may read."""

FIELDS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"retry-after", b"%d" % RETRY_AFTER_SECONDS),
)
CROSS_ORIGIN: Final = (
    (b"access-control-expose-headers", ", ".join(READABLE).encode()),
    (b"vary", b"Origin"),
)

RefusalParts = tuple[Fields, bytes]
"""Headers and body of an answer with status 503."""


class _Route(NamedTuple):
    """A route, refused beyond its bound of requests under way."""

    path: str
    bound: int
    shed: Count


class Overload:
    """Counts the decisions and rewards under way, refuses more than their bound, and reports that.

    waiting     requests that wait for their answers
    _admitted   requests of this turn of the event loop, which no task has counted as waiting yet
    """

    def __init__(self, telemetry: Telemetry, settings: Settings) -> None:
        self.waiting = self._admitted = 0
        self._clock = telemetry.clock
        self._requests = telemetry.requests
        self._origins = {origin.encode() for origin in settings.cors_origins}
        self._routes = {}
        for path, part in PENDING_FACTORS.items():
            route = _Route(path, part * settings.max_pending, telemetry.shed.labels(path))
            self._routes[path.encode()] = self._routes[b"%b/" % path.encode()] = route
        content = problem_of(Overloaded())
        content.request_id = "{id}"
        body = bytes(JSONResponse(content.model_dump()).body)
        self._before_id, self._after_id = body.split(b"{id}")
        self._refused, self._reported_at = 0, -inf

    def refusal(self, method: bytes, path: bytes, headers: Fields) -> RefusalParts | None:
        """Return the answer to a request that is refused, and None for any other.

        path      decoded, as requests are routed by it
        headers   with names in lower case
        """
        route = self._routes.get(path)
        if route is None or method != b"POST" or self._admits(route.bound):
            return None
        route.shed.inc()
        self._requests.labels(route.path, "POST", "503").inc()
        self._report(route)
        given, origin = b"", b""
        for field, value in headers:
            if field == request_id.HEADER_NAME:
                given = value
            elif field == b"origin":
                origin = value
        name = request_id.sane(given).encode()
        body = b"%b%b%b" % (self._before_id, name, self._after_id)
        fields = [*FIELDS, (request_id.HEADER_NAME, name), (b"content-length", b"%d" % len(body))]
        if origin in self._origins:
            fields += [(b"access-control-allow-origin", origin), *CROSS_ORIGIN]
        return fields, body

    def _admits(self, bound: int) -> bool:
        if self.waiting + self._admitted >= bound:
            return False
        if not self._admitted:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._admitted += 1
        return True

    def _begin_turn(self) -> None:
        self._admitted = 0

    def _report(self, route: _Route) -> None:
        """Report what was refused, in at most one line every `REPORT_SECONDS`."""
        self._refused += 1
        now = self._clock.monotonic()
        if now >= self._reported_at + REPORT_SECONDS:
            logger.warning(
                "overloaded: requests refused since the last such line: %d, the latest a POST %s "
                "beyond %d under way (FORAGE_MAX_PENDING)",
                self._refused,
                route.path,
                route.bound,
            )
            self._refused, self._reported_at = 0, now
