"""The hot path: /select and /reward from the socket to the engine and back, without a framework, a
task or a turn of the loop between.

`Wire` is uvicorn's HTTP protocol with a short cut. A request that came whole, in one piece, whose
head was judged before and whose body reads at once, is answered by callbacks. Whatever is unusual
in any way (a header with a meaning, a body in parts, a field that is not as it should be) goes the
ordinary way, through uvicorn and FastAPI; both answer alike.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.access import GRANT
from service.engine import Answer, Question
from service.errors import Refused, StoreUnavailable
from service.http.fast import read_reward, read_select, write_answer, write_status
from service.http.problems import bug, refusal
from service.keys import KeyScope
from service.services import Services
from service.settlement import Outcome

logger = logging.getLogger(__name__)

HEADS, HEAD_BYTES = 4_096, 2_048
"""So many heads of requests are remembered, and none that is longer: a client's differ in the
length of the body alone."""

LATER_BYTES = 65_536
"""Of requests that a client sends before the answer to its last, as many are read ahead."""

END = b"\r\n\r\n"
JSON = b"application/json"
PLAIN = {b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"connection",
         b"referer", b"dnt", b"priority"}  # fmt: skip
"""Headers that change nothing of an answer. `connection` is judged by the parser."""
KEYS = {b"authorization", b"x-api-key"}
"""Headers that say who asks. A page's `origin` goes the ordinary way, where it is judged."""


class Head(NamedTuple):
    """Of a request for the hot path.

    length        of the body
    credentials   the headers that say who asks
    """

    path: str
    length: int
    credentials: tuple[tuple[bytes, bytes], ...] = ()


class _Parsed:
    """What the parser calls, of one head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.whole = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.whole = True


def judge(head: bytes, limit: int) -> Head | None:
    """A head that is for the hot path: one body of JSON, of at most `limit` bytes, and no header
    that is not known to mean nothing here. By the same parser as the ordinary way."""
    parsed = _Parsed()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    path = parsed.url.decode("latin-1")
    if path not in ("/select", "/reward") or not parsed.whole or parser.get_method() != b"POST":
        return None
    if parser.get_http_version() != "1.1" or not parser.should_keep_alive():
        return None
    credentials = tuple(header for header in parsed.headers if header[0] in KEYS)
    known = PLAIN | KEYS
    found = [(name, value) for name, value in parsed.headers if name not in known]
    if sorted(name for name, _ in found) != [b"content-length", b"content-type"]:
        return None
    fields = dict(found)
    length = fields[b"content-length"]
    if fields[b"content-type"] != JSON or not length.isdigit() or int(length) > limit:
        return None
    return Head(path, int(length), credentials)


class Door:
    """What the connections of a process share: judged heads, beginnings of answers, counts.

    open, waiting   connections; those whose request of the hot path waits for its answer
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.open = self.waiting = 0
        services.journal.all_wait = self._all_wait
        self._limit = services.settings.max_body_bytes
        self._heads: dict[bytes, Head | None] = {}
        self._default: Any = None
        self._beginning = b""
        telemetry = services.telemetry
        self.times = {path: telemetry.stages.labels(path[1:]) for path in ("/select", "/reward")}
        self.answered = {
            path: telemetry.requests.labels(path, "POST", "200") for path in self.times
        }

    def head(self, data: bytes) -> Head | None:
        """None: it is not for the hot path."""
        try:
            return self._heads[data]
        except KeyError:
            if len(data) > HEAD_BYTES:
                return None
            if len(self._heads) >= HEADS:
                self._heads.clear()
            found = self._heads[data] = judge(data, self._limit)
            return found

    def _all_wait(self) -> bool:
        return self.waiting >= self.open

    def asked(self) -> None:
        """By one connection more."""
        self.waiting += 1
        if self._all_wait():
            self.services.journal.hurry()

    def beginning(self, default: list[tuple[bytes, bytes]]) -> bytes:
        """Status line and uvicorn's own headers, which change once a second."""
        if default is not self._default:
            lines = b"".join(b"%b: %b\r\n" % header for header in default)
            self._beginning = b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: "
            self._default = default
        return self._beginning


class Wire(HttpToolsProtocol):
    """One connection.

    _busy     a request of the hot path waits for its answer
    _within   the parser of the ordinary way is within a message
    _later    what came meanwhile
    """

    def __init__(self, *options: Any, door: Door, **named: Any) -> None:
        super().__init__(*options, **named)
        self._door = door
        self._busy = self._within = self._last = False
        self._later = b""
        self._path = ""
        self._start = self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None

    # -- in ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._busy:
            self._later += data
            if len(self._later) > LATER_BYTES:
                self.flow.pause_reading()
        elif self._within or not self._is_idle() or not self._take(data):
            super().data_received(data)

    def _is_idle(self) -> bool:
        """Nothing of the ordinary way is under way."""
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    def on_message_begin(self) -> None:
        self._within = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._within = False
        super().on_message_complete()

    def _take(self, data: bytes) -> bool:
        """Whether it was one whole request for the hot path, which is under way now."""
        end = data.find(END) + len(END)
        head = self._door.head(data[:end]) if end >= len(END) else None
        if head is None or len(data) != end + head.length:
            return False
        self._path, self._start = head.path, perf_counter()
        asked = (read_select if head.path == "/select" else read_reward)(data[end:])
        if asked is None:
            return False
        self._busy = True
        self._door.asked()
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        access = self._door.services.access
        try:
            if not access.required:
                self._hand_over(asked)
                return True
            scope: KeyScope = "select" if head.path == "/select" else "reward"
            before = GRANT.set(access.admit(head.credentials, scope))
            try:
                self._hand_over(asked)
            finally:
                GRANT.reset(before)
        except Exception as fault:
            self._failed(fault)
        return True

    def _hand_over(self, asked: Question | Outcome) -> None:
        services = self._door.services
        if isinstance(asked, Question):
            services.desk.ask(asked, self._selected)
        else:
            services.settlements.reward_soon(asked, self._rewarded)

    # -- out -----------------------------------------------------------------------------------

    def _selected(self, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self._failed(answer)
        else:
            self._answer(write_answer(answer))

    def _rewarded(self, status: Any) -> None:
        if isinstance(status, Exception):
            self._failed(status)
        else:
            self._answer(write_status(status))

    def _answer(self, content: bytes) -> None:
        door, path = self._door, self._path
        door.times[path].observe(perf_counter() - self._start)
        door.answered[path].inc()
        self._send(
            b"%b%d\r\ncontent-type: application/json\r\n%b\r\n%b"
            % (
                door.beginning(self.server_state.default_headers),
                len(content),
                b"connection: close\r\n" if self._last else b"",
                content,
            )
        )

    def _failed(self, fault: Exception) -> None:
        """As the ordinary way answers it."""
        foreseen = isinstance(fault, Refused | StoreUnavailable)
        response = refusal(fault) if foreseen else bug(fault)  # type: ignore[arg-type]
        telemetry, path, status = self._door.services.telemetry, self._path, response.status_code
        telemetry.stages.labels(path[1:]).observe(perf_counter() - self._start)
        telemetry.requests.labels(path, "POST", str(status)).inc()
        headers = [*self.server_state.default_headers, *response.raw_headers]
        if self._last:
            headers.append((b"connection", b"close"))
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        line = STATUS_LINE[status]
        self._send(b"%b%b\r\n%b" % (line, lines, bytes(response.body)))

    def _send(self, answer: bytes) -> None:
        self._busy = False
        self._door.waiting -= 1
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        if self._last:
            self.transport.close()
            return
        self._heard = self.loop.time()
        if self._watch is None:
            self._watch = self.loop.call_later(self.timeout_keep_alive, self._close_if_silent)
        if self._later:
            later, self._later = self._later, b""
            self.flow.resume_reading()
            self.data_received(later)

    # -- the connection ------------------------------------------------------------------------

    def _close_if_silent(self) -> None:
        """One timer for all requests of a connection, where uvicorn starts one after each."""
        self._watch = None
        left = self._heard + self.timeout_keep_alive - self.loop.time()
        if self._busy or self._within or not self._is_idle():
            left = self.timeout_keep_alive
        if self.timeout_keep_alive_task is not None or self.transport.is_closing():
            return  # the ordinary way has a timer of its own
        if left <= 0:
            self.transport.close()
        else:
            self._watch = self.loop.call_later(left, self._close_if_silent)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._door.open += 1
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open -= 1
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._busy:
            self._last = True
        else:
            super().shutdown()


def protocol(services: Services) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes of each connection: `uvicorn.Config(http=...)`."""
    return partial(Wire, door=Door(services))
