"""uvicorn's HTTP protocol within the bounds of `service.http.connections`. While the service is
overloaded it refuses requests before the application hears of them."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import httptools
from fastapi import Response
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.http.connection import Connection, HeadTooLarge, Reason
from service.http.connections import Connections
from service.http.load_shedding import LoadShedding, refusal_of
from service.http.problems import problem, respond
from service.http.request_id import NAME, new, sane

Headers = Sequence[tuple[bytes, bytes]]

ANSWERS: Final[dict[Reason, tuple[int, str, str, str]]] = {
    "malformed": (400, "malformed-http", "This is not HTTP", "the request cannot be parsed"),
    "head_time": (408, "too-slow", "The request took too long", "the head did not end in time"),
    "body_time": (408, "too-slow", "The request took too long", "the body came too slowly"),
    "head_size": (431, "head-too-large", "The head is too large", "in bytes or in headers"),
}
"""What a client is told before its connection is closed: status, slug, title, detail."""

UNREFUSED: Final = frozenset({b"origin", b"expect"})
"""Headers of requests that the application itself refuses, to say more."""

FULL: Final = (503, "too-many-connections", "All connections are taken", "try again")
UNHEARD_BYTES: Final = 65_536
"""Of what a client goes on to send when it was refused, as many are read: a socket that is closed
with unread bytes takes the answer with it."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    bounds: Connection

    def __init__(
        self, *options: Any, connections: Connections, shedding: LoadShedding, **named: Any
    ) -> None:
        super().__init__(*options, **named)
        self.headers = []
        self._connections, self._shedding = connections, shedding
        self._refused = False
        self._piece = connections.limits.head_bytes
        self._unheard = 0
        self._unanswered: deque[RequestResponseCycle] = deque()

    # -- in ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """In pieces, so that no parser keeps more of a head than it may have."""
        for start in range(0, len(data), self._piece):
            if self.bounds.stage == "closing":
                self._pass_over(len(data) - start)
                return
            self._feed(data[start : start + self._piece])

    def _feed(self, piece: bytes) -> None:
        self.bounds.received(len(piece))
        try:
            self.parser.feed_data(piece)
            self.bounds.expect_bounded(len(self.headers))
        except httptools.HttpParserUpgrade:
            return
        except HeadTooLarge:
            self._connections.end(self.bounds, "head_size")
        except httptools.HttpParserError as fault:
            large = isinstance(fault.__context__, HeadTooLarge)
            self._connections.end(self.bounds, "head_size" if large else "malformed")

    def _pass_over(self, count: int) -> None:
        self._unheard += count
        if self._unheard > UNHEARD_BYTES:
            self.flow.pause_reading()

    # -- what the parser calls -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.bounds.head_begun()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.bounds.expect_short_head(self.url, self.headers)
        self._refused = self._shedding.overloaded and self._refuses()
        if self._refused:
            self.bounds.head_ended()
            return
        super().on_headers_complete()  # raises where the target is none: it is still a head then
        self.bounds.head_ended()
        self._unanswered.append(self.cycle)

    def _refuses(self) -> bool:
        """Only where no answer is under way, which would have to come first."""
        return (
            self.bounds.pending == 0
            and self.parser.get_method() == b"POST"
            and all(name not in UNREFUSED for name, _ in self.headers)
            and self._shedding.refuses(self.url.partition(b"?")[0].decode("latin-1"))
        )

    def _should_upgrade(self) -> bool:
        """Nothing is served but HTTP: an upgrade is answered as any other request."""
        return False

    def on_body(self, body: bytes) -> None:
        self.bounds.body(len(body))
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.bounds.request_ended()
        if self._refused:
            self._refuse()
        else:
            super().on_message_complete()

    def _refuse(self) -> None:
        last = not self.parser.should_keep_alive()
        given = next((value for name, value in self.headers if name == NAME), None)
        headers, body = refusal_of(new() if given is None else sane(given))
        self.transport.write(self._rendered(503, headers, body, last=last))
        self._refused = False
        self.bounds.answered()
        if last:
            self.transport.close()

    # -- out -----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        self._unset_keepalive_if_required()  # an idle connection is closed by `Connections`
        self.bounds.answered()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.bounds.read_on()

    @property
    def held_back(self) -> bool:
        return self.flow.read_paused

    def end(self, reason: Reason) -> None:
        if reason not in ANSWERS or not self._can_refuse():
            self.transport.close()
            return
        if self.bounds.stage == "body" and not self._refused:  # its route waits for the rest
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(self.rendered(respond(problem(*ANSWERS[reason])), last=True))
        self.transport.write_eof()
        self.bounds.refused()

    def _can_refuse(self) -> bool:
        """No answer is under way that a refusal would be taken for a part of."""
        if self._refused:
            return True
        if self.bounds.stage == "body":
            return self.bounds.pending == 1 and not self.cycle.response_started
        return self.bounds.pending == 0

    def rendered(self, response: Response, *, last: bool) -> bytes:
        body = bytes(response.body)
        return self._rendered(response.status_code, response.raw_headers, body, last=last)

    def _rendered(self, status: int, own: Headers, body: bytes, *, last: bool) -> bytes:
        headers = [*self.server_state.default_headers, *own]
        if last:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        return b"%b%b\r\n%b" % (STATUS_LINE[status], lines, body)

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.bounds = self._connections.admit(self, self.client[0] if self.client else "")
        if self.bounds.stage == "closing":
            transport.write(self.rendered(respond(problem(*FULL)), last=True))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.lost(self.bounds)
        super().connection_lost(exc)
        self.pipeline.clear()
        for cycle in self._unanswered:  # uvicorn tells the last of them alone
            cycle.disconnected = True
            cycle.message_event.set()


def protocol(connections: Connections, shedding: LoadShedding) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes of each connection: `uvicorn.Config(http=...)`."""
    return partial(BoundedProtocol, connections=connections, shedding=shedding)
