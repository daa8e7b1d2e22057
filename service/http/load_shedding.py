"""Refuses decisions and rewards beyond a bounded number while the process is overloaded.

Beyond its capacity a process would queue requests until every answer came too late. It is
overloaded while the event loop is late without a pause: the minimum of its delay over an interval
tells a standing queue from a single long turn (CoDel: Nichols and Jacobson 2012), and a log that is
slow does not delay the loop. Then as many requests are under way as are answered in `WAIT_SECONDS`,
and others are refused: by the protocol where it can (`http.bounded`), at the price of parsing them,
else by the middleware.
"""

import asyncio
import logging
from math import inf
from typing import Final

from starlette.types import Send

from service.http.problems import MEDIA_TYPE, RETRY_AFTER_SECONDS, problem
from service.http.request_id import NAME
from service.log.commit_gate import CommitGate
from service.observability.telemetry import Telemetry

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.005
INTERVAL_SECONDS: Final = 0.05
LATE_SECONDS: Final = 0.003
CALM_SECONDS: Final = 0.5
"""An overload ends after so long without a late interval."""
WAIT_SECONDS: Final = 0.05
LEAST: Final = 128
"""Requests that are always under way."""
SMOOTHING: Final = 0.2
"""Weight of the newest interval in the rate of answers."""
PARTS: Final = {"/select": 1, "/select/batch": 1, "/reward": 2, "/reward/batch": 2}
"""The bound of each route, as a multiple: what rewards teach is lost where their sender does not
repeat them."""

_PLACE: Final = "request-id"
_PROBLEM = problem(503, "overloaded", "The service is overloaded", "nothing was changed: try again")
_PROBLEM.request_id = _PLACE
_BEFORE, _AFTER = _PROBLEM.model_dump_json().encode().split(_PLACE.encode())


class LoadShedding:
    """overloaded   at present
    bound        requests under way beyond which decisions are refused in an overload
    """

    def __init__(self, telemetry: Telemetry, gate: CommitGate) -> None:
        self._gate, self._delay = gate, telemetry.loop_delay
        self._shed = {path: telemetry.shed.labels(path) for path in PARTS}
        self._requests = telemetry.requests
        self._least, self._interval_began, self._answered = inf, -inf, 0
        self._late_until, self._rate = -inf, 0.0
        self.overloaded, self.bound = False, LEAST

    def refuses(self, path: str) -> bool:
        """Whether the next request for this path is refused."""
        if not self.overloaded or path not in PARTS:
            return False
        refused = self._gate.waiting >= PARTS[path] * self.bound
        if refused:
            self._shed[path].inc()
            self._requests.labels(path, "POST", "503").inc()
        return refused

    async def run(self) -> None:
        """Watch the event loop for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.observe(loop.time(), loop.time() - due)

    def observe(self, now: float, delay: float) -> None:
        """delay: of the event loop, in seconds."""
        self._least = min(self._least, delay)
        took = now - self._interval_began
        if took < INTERVAL_SECONDS:
            return
        rate = (self._gate.answered - self._answered) / took
        self._rate += SMOOTHING * (rate - self._rate)
        self.bound = max(LEAST, round(self._rate * WAIT_SECONDS))
        if self._least > LATE_SECONDS:
            self._late_until = now + CALM_SECONDS
        self._delay.set(self._least)
        self._turn(overloaded=now < self._late_until)
        self._least, self._interval_began, self._answered = inf, now, self._gate.answered

    def _turn(self, *, overloaded: bool) -> None:
        if overloaded and not self.overloaded:
            logger.warning("overloaded: the event loop is %.0f ms late", 1e3 * self._least)
        elif self.overloaded and not overloaded:
            logger.warning("no longer overloaded")
        self.overloaded = overloaded


def refusal_of(request_id: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of a 503, as `problems.respond` would make them, in a tenth of the time."""
    name = request_id.encode()
    body = b"".join((_BEFORE, name, _AFTER))
    headers = [
        (NAME, name),
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % RETRY_AFTER_SECONDS),
    ]
    return headers, body


async def refuse(send: Send, request_id: str) -> None:
    headers, body = refusal_of(request_id)
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
