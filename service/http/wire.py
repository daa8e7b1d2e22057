"""The hot path: /select and /reward from the socket to the engine and back, without a framework, a
task or a turn of the loop between.

`Wire` is uvicorn's HTTP protocol within bounds, with a short cut. A request that came whole, in one
piece, whose head was judged before and whose body reads at once, is answered by callbacks. Whatever
is unusual in any way (a header with a meaning, a body in parts, a field that is not as it should
be) goes the ordinary way, through uvicorn and FastAPI; both answer alike.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import httptools
import msgspec

from service.access import GRANT, Caller
from service.connection import BETWEEN
from service.engine import Answer
from service.errors import Refused, StoreUnavailable
from service.hosts import Hosts
from service.http.admission import AT_THE_DOOR, admit_question, expect_short
from service.http.bounded import BoundedProtocol
from service.http.fast import read_reward, read_select, write_answer, write_status
from service.http.gate import declared
from service.http.problems import bug, refusal
from service.keys import KeyScope
from service.question import Question
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


def judge(head: bytes, limit: int, hosts: Hosts) -> Head | None:
    """A head that is for the hot path: one body of JSON, of at most `limit` bytes, a host of this
    service, and no header that is not known to mean nothing here. By the same parser as the
    ordinary way."""
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
    if not hosts.serves([value for name, value in parsed.headers if name == b"host"]):
        return None
    credentials = tuple(header for header in parsed.headers if header[0] in KEYS)
    known = PLAIN | KEYS
    found = [(name, value) for name, value in parsed.headers if name not in known]
    if sorted(name for name, _ in found) != [b"content-length", b"content-type"]:
        return None
    fields = dict(found)
    length = declared(fields[b"content-length"])
    if fields[b"content-type"] != JSON or length > limit:
        return None
    return Head(path, length, credentials)


class Door:
    """What the connections of a process share: judged heads, beginnings of answers, counts.

    open, waiting   connections; those whose request of the hot path waits for its answer
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.open = self.waiting = 0
        services.journal.all_wait = self._all_wait
        self._limit, self._hosts = services.settings.max_body_bytes, services.hosts
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
            found = self._heads[data] = judge(data, self._limit, self._hosts)
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


class Wire(BoundedProtocol):
    """One connection.

    _busy     a request of the hot path waits for its answer
    _later    what came meanwhile
    """

    def __init__(self, *options: Any, door: Door, **named: Any) -> None:
        super().__init__(*options, connections=door.services.connections, **named)
        self._door = door
        self._busy = self._last = False
        self._later = b""
        self._path = ""
        self._address: str | None = None
        self._start = 0.0

    # -- in ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._busy:
            self._later += data
            if len(self._later) > LATER_BYTES:
                self.flow.pause_reading()
        elif not self._is_idle() or not self._take(data):
            super().data_received(data)

    def _is_idle(self) -> bool:
        """Nothing of the ordinary way is under way."""
        bounds = self.bounds
        return not bounds.pending and bounds.stage in BETWEEN and not self.flow.write_paused

    def _take(self, data: bytes) -> bool:
        """Whether it was one whole request for the hot path, which is under way now."""
        end = data.find(END) + len(END)
        head = self._door.head(data[:end]) if end >= len(END) else None
        if head is None or len(data) != end + head.length:
            return False
        self._path, self._start = head.path, perf_counter()
        caller = refused = asked = None
        if self._door.services.access.required:
            caller, refused = self._admit(head)
        if refused is None:
            asked = (read_select if head.path == "/select" else read_reward)(data[end:])
            if asked is None:
                return False
        self._busy = True
        self._door.asked()
        self.bounds.asked()
        try:
            if asked is None:
                raise refused or AssertionError
            if caller is None:
                self._hand_over(asked)
                return True
            if isinstance(asked, Question):
                asked = msgspec.structs.replace(asked, caller=caller.grant.name)
            before = GRANT.set(caller.grant)
            try:
                self._charge(asked, caller)
                self._hand_over(asked)
            finally:
                GRANT.reset(before)
        except Exception as fault:
            self._failed(fault)
        return True

    def _admit(self, head: Head) -> tuple[Caller | None, Refused | None]:
        """Who asks, or why it is refused, before its body is read."""
        services = self._door.services
        scope: KeyScope = "select" if head.path == "/select" else "reward"
        try:
            grant = services.access.admit(head.credentials, scope)
            if self._address is None:
                self._address = services.addresses.of(self.client[0] if self.client else None, ())
            caller = Caller(grant, self._address)
            expect_short(caller, head.length)
        except Refused as fault:
            return None, fault
        return caller, None

    def _charge(self, asked: Question | Outcome, caller: Caller) -> None:
        services = self._door.services
        if isinstance(asked, Question):
            admit_question(services, caller, asked)
        else:
            services.access.charge(caller, AT_THE_DOOR)

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
        self._send(self.rendered(response, last=self._last))

    def _send(self, answer: bytes) -> None:
        self._busy = False
        self.bounds.answered()
        self._door.waiting -= 1
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        if self._last:
            self.transport.close()
            return
        if self._later:
            later, self._later = self._later, b""
            self.flow.resume_reading()
            self.data_received(later)

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._door.open += 1
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open -= 1
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._busy:
            self._last = True
        else:
            super().shutdown()


def protocol(services: Services) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes of each connection: `uvicorn.Config(http=...)`."""
    return partial(Wire, door=Door(services))
