"""Sends changes of experiments that people should hear of to an address of the operator.

Nothing is queued. The list of changes is in the state (`state/changelog.py`), and the process that
leads follows it with one position an experiment. Where it begins, it cannot know what its
predecessor has sent: it sends the changes of the last minute again, under the same ids.
"""

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from typing import Literal, get_args

import httpx

from service import __version__
from service.errors import StoreError
from service.log.log import Log
from service.log.replica import Replica
from service.log.stores import Store
from service.observe.change_list import entry_of
from service.settings import Settings
from service.state.changelog import ChangeLog, NotedChange
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two looks for changes."""

ANSWER_SECONDS = 10.0
"""Longest wait, in seconds, for the answer to one attempt."""

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 300.0
"""Bounds, in seconds, of the wait after a failed attempt. It doubles with each attempt."""

GIVE_UP_SECONDS = 3_600.0
"""Age of a change, in seconds, at which it is no longer tried again."""

REPEATED_SECONDS = 60.0
"""Age of a change, in seconds, up to which a process that begins to lead sends it: longer than
another one takes to start, or to notice that it leads."""

AttemptOutcome = Literal["accepted", "failed", "given_up"]
"""What became of an attempt; after `failed` the change is sent again."""


def signature_of(secret: str, at: int, body: bytes) -> str:
    """Return the signature of a body that is sent at some unix second: HMAC-SHA256 of the second, a
    dot and the body, in hexadecimal digits."""
    return hmac.new(secret.encode(), b"%d.%b" % (at, body), hashlib.sha256).hexdigest()


class Webhook:
    """The sender of one process; it does nothing while another process leads.

    connect   returns the client that sends
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        settings: Settings,
        telemetry: Telemetry,
        connect: Callable[[], httpx.AsyncClient] = httpx.AsyncClient,
    ) -> None:
        self._log, self._store, self._telemetry = log, store, telemetry
        self._url = settings.webhook_url or ""
        secret = settings.webhook_secret
        self._secret = None if secret is None else secret.get_secret_value()
        self._connect = connect
        self._followed: set[str] = set()

    async def run(self) -> None:
        """Follow every experiment while this process leads, for ever."""
        async with await asyncio.to_thread(self._connect) as client:  # it reads certificates
            while True:
                if self._log.presence.leads:
                    for replica in self._log.replicas.by_name.values():
                        if replica.name not in self._followed:
                            self._followed.add(replica.name)
                            self._log.background.spawn(self._follow(client, replica))
                await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self, client: httpx.AsyncClient, replica: Replica) -> None:
        """Send the changes of an experiment, one after the other, while this process leads."""
        for outcome in get_args(AttemptOutcome):  # from 0 on: a first sample is no increase
            self._telemetry.webhook_attempts.labels(replica.name, outcome)
        try:
            sent = self._begin(replica.state.changelog)
            while self._log.presence.leads:
                change = replica.state.changelog.next_notable(sent)
                if change is None:
                    await asyncio.sleep(LOOK_SECONDS)
                elif await self._deliver(client, replica, change):
                    sent = change.position
        finally:
            self._followed.discard(replica.name)

    def _begin(self, changelog: ChangeLog) -> int:
        """Return the position of the last change that is too old to be sent now."""
        since = self._telemetry.clock.time() - REPEATED_SECONDS
        return next((each.position for each in changelog.newest_first() if each.at < since), 0)

    async def _deliver(
        self, client: httpx.AsyncClient, replica: Replica, change: NotedChange
    ) -> bool:
        """Send a change until it is accepted, or too old; False where another process leads."""
        wait = FIRST_WAIT_SECONDS
        while fault := await self._refusal(client, replica, change):
            if self._telemetry.clock.time() + wait > change.at + GIVE_UP_SECONDS:
                self._count(replica, "given_up")
                logger.error(
                    "experiment %s: the webhook never got the change at position %d: %s",
                    replica.name,
                    change.position,
                    fault,
                )
                return True
            self._count(replica, "failed")
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            if not self._log.presence.leads:
                return False
        self._count(replica, "accepted")
        return True

    def _count(self, replica: Replica, outcome: AttemptOutcome) -> None:
        self._telemetry.webhook_attempts.labels(replica.name, outcome).inc()

    async def _refusal(
        self, client: httpx.AsyncClient, replica: Replica, change: NotedChange
    ) -> str | None:
        """Send a change once. Return why it was not accepted; None where it was."""
        try:
            entry = await entry_of(self._store, replica.state, change)
        except StoreError as fault:
            return f"the log cannot be read: {fault}"
        identity = {"id": f"{replica.name}/{change.position}", "experiment": replica.name}
        body = json.dumps({**identity, **entry.model_dump()}).encode()
        request = client.build_request(
            "POST", self._url, content=body, headers=self._headers(body), timeout=ANSWER_SECONDS
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await client.send(request, stream=True)
                await answer.aclose()  # whatever it says
        except (TimeoutError, httpx.TimeoutException):
            return f"no answer within {ANSWER_SECONDS:g} s"
        except httpx.HTTPError as fault:
            return f"no answer: {fault}"
        return None if answer.is_success else f"status {answer.status_code}"

    def _headers(self, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"forage/{__version__}"}
        if self._secret is not None:
            at = int(self._telemetry.clock.time())
            headers["Forage-Signature"] = f"t={at},v1={signature_of(self._secret, at, body)}"
        return headers
