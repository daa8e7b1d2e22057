"""Refuses a part of the decisions and rewards while the process is overloaded.

Beyond its capacity a process would queue requests until every answer came too late. The delay of
the event loop is the length of that queue: it grows with work, and not with a log that is slow.
Where its minimum over an interval stays above a target (CoDel: Nichols and Jacobson 2012), more
requests are refused, at the price of parsing their head; where it falls below, fewer.
"""

import asyncio
import logging
from math import inf
from typing import Final

from starlette.types import Send

from service.http.problems import MEDIA_TYPE, RETRY_AFTER_SECONDS, problem
from service.observability.telemetry import Telemetry

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.01
INTERVAL_SECONDS: Final = 0.1
TARGET_SECONDS: Final = 0.02
STEP, MOST = 0.08, 0.95
"""Change of the refused share in one interval, and its bound: some requests always pass."""
PARTS: Final = {"/select": 1.0, "/select/batch": 1.0, "/reward": 2.0, "/reward/batch": 2.0}
"""Rewards are refused only once more than half of the decisions are: what they teach is lost where
their sender does not repeat them."""

_PLACE: Final = "request-id"
_PROBLEM = problem(503, "overloaded", "The service is overloaded", "nothing was changed: try again")
_PROBLEM.request_id = _PLACE
_BEFORE, _AFTER = _PROBLEM.model_dump_json().encode().split(_PLACE.encode())


class LoadShedding:
    """share   of the decisions that are refused at present"""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._debts = dict.fromkeys(PARTS, 0.0)
        self._shed = {path: telemetry.shed.labels(path) for path in PARTS}
        self._least, self._interval_ends = inf, 0.0
        self.share = 0.0

    def refuses(self, path: str) -> bool:
        """Whether the next request for this path is refused: evenly, without chance."""
        if not self.share or path not in PARTS:
            return False
        debt = self._debts[path] + max(0.0, 1 - PARTS[path] * (1 - self.share))
        refused = debt >= 1
        self._debts[path] = debt - refused
        if refused:
            self._shed[path].inc()
        return refused

    async def run(self) -> None:
        """Watch the event loop for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.observe(loop.time(), loop.time() - due)

    def observe(self, now: float, delay: float) -> None:
        """delay: in seconds, of what was due before `now`."""
        self._least = min(self._least, delay)
        if now < self._interval_ends:
            return
        self._adjust(self._least)
        self._least, self._interval_ends = inf, now + INTERVAL_SECONDS

    def _adjust(self, delay: float) -> None:
        before = self.share
        change = STEP if delay > TARGET_SECONDS else -STEP / 2
        self.share = min(MOST, max(0.0, before + change))
        self._telemetry.loop_delay.set(delay)
        if self.share and not before:
            logger.warning(
                "overloaded: the event loop is %.0f ms late, and requests are refused", 1e3 * delay
            )
        elif before and not self.share:
            logger.warning("no longer overloaded: every request is served")


async def refuse(send: Send, request_id: str) -> None:
    """Answer 503 as `problems.respond` would, in a tenth of the time."""
    body = b"".join((_BEFORE, request_id.encode(), _AFTER))
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % RETRY_AFTER_SECONDS),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
