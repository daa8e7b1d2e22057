"""uvicorn's HTTP protocol with bounds: connections in number, heads in bytes, requests in time.

A client that sends half a request, or nothing, would hold a connection for ever. uvicorn closes
idle connections (`timeout_keep_alive`), and the kernel those whose client does not read its answer
(`TCP_USER_TIMEOUT` of the listening socket). A proxy does the rest better (deploy/nginx).
"""

import asyncio
import re
import resource
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, cast
from urllib.parse import unquote_to_bytes

import httptools
from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.errors import ConfigurationError
from service.http.edge import METHOD, Edge, read_body
from service.http.gate import expect_size
from service.http.problems import problem, respond
from service.http.request_head import Fields, RequestHead
from service.http.schemas import Problem
from service.http.services import Services
from service.settings import Settings

DEFAULT_CONNECTIONS: Final = 4_096
RESERVED_FILES: Final = 64
"""Open files kept for the store and for sockets to others; an eighth of all where that is more."""

TIMEOUT_SECONDS: Final = {"head": 10.0, "body": 30.0}
"""Seconds for a head, or for the first byte of a connection, and for a whole body."""
PROGRESS_BYTES: Final = 1_048_576
"""Bytes for which a larger body, a trained version, gets the time of a body again."""
LINGER_SECONDS: Final = 2.0
"""Seconds to read a last answer: a socket closed with unread bytes is reset, which discards it."""
CROSSING_SECONDS: Final = 0.2
"""Seconds for a request that crosses the end of an idle connection: its client then reads that end,
and no reset."""
IDLE_SECONDS: Final = 1
"""Idle seconds after which a service that stops ends a connection: busy clients ask again
sooner."""
UNREAD_SECONDS: Final = 0.1
"""Least idle seconds of a connection once the service stops: it reads what the kernel has of it."""

NOBODY_WAITS: Final = asyncio.Event()
"""Event of a request whose body nobody waits for: making one takes as long as reading a header."""
MALFORMED: Final = ("malformed-http", "This is not HTTP")
PLAIN_TARGET: Final = re.compile(rb"/(?!/)[\w.~/-]*(\?[\w.~/=&+-]*)?", re.ASCII)
"""Targets whose path needs no decoding: nearly all."""


def protocol(services: Services, edge: Edge) -> Callable[..., asyncio.Protocol]:
    """Make the factory of connections that `uvicorn.Config(http=...)` takes."""
    return partial(BoundedProtocol, services=services, edge=edge)


def connection_limit(settings: Settings, files: int | None = None) -> int:
    """Return how many connections the process may hold. Raises ConfigurationError where the setting
    asks for more than the open files permit.

    files   that the process may open, -1 for no limit; None: the limit of the system
    """
    if files is None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = settings.max_connections
    if limit is None:
        room = files - max(RESERVED_FILES, files // 8)
        return DEFAULT_CONNECTIONS if files < 0 else max(1, min(DEFAULT_CONNECTIONS, room))
    if 0 <= files < limit + RESERVED_FILES:
        raise ConfigurationError(
            f"FORAGE_MAX_CONNECTIONS: {limit} connections need {limit + RESERVED_FILES} open files,"
            f" and this process may have {files}: raise the limit (ulimit -n)"
        )
    return limit


class _LastAnswer:
    """Transport of the last answer of a connection: its end closes the connection in one direction
    only."""

    def __init__(self, connection: "BoundedProtocol") -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.end(LINGER_SECONDS)


class _EdgeCycle(RequestResponseCycle):
    """A request that the edge answers: one task and one write, and no scope."""

    def __init__(self, connection: "BoundedProtocol", head: RequestHead, keep_alive: bool) -> None:
        self._connection, self._head, self.keep_alive = connection, head, keep_alive
        self.transport, self.flow = connection.transport, connection.flow
        self.waiting_for_100_continue = connection.expect_100_continue
        self.message_event, self.body, self.more_body = NOBODY_WAITS, bytearray(), True
        self.disconnected = self.response_started = self.response_complete = False

    async def run_asgi(self, app: Any) -> None:
        """Answer in place of an application."""
        connection = self._connection
        status, fields, body = await connection.edge.answer(self._head, self._read)
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        del self._connection  # which refers to this
        if self.disconnected:
            return
        self.response_started = self.response_complete = True
        connection.write(status, fields, body, close=not self.keep_alive)
        if not self.keep_alive:
            self.transport.close()
        connection.on_response_complete()

    async def _read(self, limit: float) -> bytes:
        """Return the body, which comes with its head as a rule."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            self.message_event = asyncio.Event()
            self.message_event.set()  # for what is there
            return await read_body(cast(Receive, self.receive), limit)
        expect_size(len(self.body), limit)
        return bytes(self.body)


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    _part      of the request that is not complete yet; None: between two requests
    _received  bytes of a body since its timer was started
    _unparsed  bytes received since the parser last made progress
    _running   the request that is being answered, or was answered last
    _last      the request whose answer ends the connection, as far as is known
    _shed      whether the request that is being read was refused for overload, or comes too late
    _ended     nothing more is read or answered
    """

    def __init__(self, *options: Any, services: Services, edge: Edge, **more: Any) -> None:
        super().__init__(*options, **more)
        self._services, self.edge = services, edge
        self._head_bytes = services.settings.max_head_bytes
        self.timeout_keep_alive = services.settings.keep_alive_seconds
        self._part: Literal["head", "body"] | None = None
        self._unparsed = self._received = 0
        self._running: RequestResponseCycle | None = None
        self._last: RequestResponseCycle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = self._shed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._services.max_connections:
            self._services.telemetry.refused_connections.inc()
            full = problem(503, "too-many-connections", "All connections are taken", "try again")
            self._ended = True
            self._write_last(full)
            transport.close()
            return
        self._timer = self.loop.call_later(TIMEOUT_SECONDS["head"], self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn marks only the last pipelined one
            self._running.disconnected = True
            self._running.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a connection whose client has closed its own side until what was received whole is
        answered."""
        if self._ended or not self._is_answering():
            return False
        if self._part == "body":  # of the latest request
            if self.cycle is self._running:
                return False
            self.pipeline.popleft()
            assert self._running is not None
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        self._part = None
        self._stop_timer()
        self.cycle.keep_alive = False
        return True

    # -- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Feed the parser at most the bytes that a head may still have: it keeps no bound."""
        if self._ended:
            return
        self._unset_keepalive_if_required()
        if self._part is None:
            self._part = "head"
        start = 0
        try:
            while start < len(data):
                piece = data[start : start + self._head_bytes - self._unparsed]
                start += len(piece)
                self._unparsed += len(piece)
                try:
                    self.parser.feed_data(piece)
                except httptools.HttpParserUpgrade as upgrade:
                    start -= len(piece) - upgrade.args[0]
                    self._ignore_upgrade()
                if self._unparsed >= self._head_bytes:
                    self._refuse(
                        431,
                        "head-too-large",
                        "The head is too large",
                        f"request line and headers may have {self._head_bytes} bytes",
                    )
                    return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # the latter of CONNECT
            self._refuse(400, *MALFORMED, "the request cannot be parsed")
            return
        if self._part is not None and self._timer is None:
            self._received = 0
            self._timer = self.loop.call_later(TIMEOUT_SECONDS[self._part], self._on_timeout)

    def _ignore_upgrade(self) -> None:
        """Parse the head again without `Upgrade`: the parser reads no body of such a request, which
        Java's client sends unless it is told otherwise."""
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"%b%b\r\n" % (line, b"".join(fields)))

    def on_message_begin(self) -> None:
        self._part, self._shed = "head", False
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._ended:
            self._shed = True
            return
        try:
            path = self._read_target()
        except ValueError as fault:
            self._shed = True
            self._refuse(400, *MALFORMED, str(fault))
            return
        self._advance("body")
        self._shed = self._shed_load(path)
        if not self._shed:
            route = path.decode().removesuffix("/")
            if route in self.edge.routes and self.parser.get_method() == METHOD.encode():
                head = RequestHead(METHOD, route, self.headers, str(self.scheme), self.client)
                self._queue(_EdgeCycle(self, head, self._is_kept()))
            else:
                self._begin_asgi()
            if self._services.lifecycle.draining:
                self._end_after(self.cycle)

    def _begin_asgi(self) -> None:
        """Have uvicorn make the scope of a request that the edge does not answer."""
        url, fields, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += fields
        super().on_headers_complete()

    def _queue(self, cycle: RequestResponseCycle) -> None:
        """Begin to answer a request, or have it wait for those before it."""
        waits, self.cycle = self._is_answering(), cycle
        if waits:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._received += len(body)
        if not self._shed:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._advance(None)
            if not self._shed:
                super().on_message_complete()

    def _read_target(self) -> bytes:
        """Return the decoded path. A target that names a host has it replace `Host`. Raises
        ValueError for a head that has no single meaning."""
        names, version = [name for name, _ in self.headers], self.parser.get_http_version()
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            raise ValueError("a request names its host once")
        if version == "1.0" and b"transfer-encoding" in names:
            raise ValueError("HTTP/1.0 has no Transfer-Encoding")
        if PLAIN_TARGET.fullmatch(self.url):
            return self.url.partition(b"?")[0]
        target = httptools.parse_url(self.url)
        path, query = target.path or b"/", target.query or b""
        if target.host is not None:
            host = b"[%b]" % target.host if b":" in target.host else target.host
            host += b"" if target.port is None else b":%d" % target.port
            self.headers[:] = [field for field in self.headers if field[0] != b"host"]
            self.headers.append((b"host", host))
            self.url = path + (b"?" + query if query else b"")
        path = unquote_to_bytes(path)
        for part in (path, unquote_to_bytes(query)):
            try:
                part.decode()
            except UnicodeDecodeError:
                raise ValueError("the target is not UTF-8") from None
        return path

    def _shed_load(self, path: bytes) -> bool:
        """Refuse the request whose head was read if the service is overloaded. One that waits for
        the answer to an earlier request of its connection is served in its turn."""
        if self._is_answering():
            return False
        method, headers = self.parser.get_method(), self.headers
        refusal = self._services.overload.refusal(method, path, headers)
        if refusal is None:
            return False
        keep = self._is_kept() and not self._services.lifecycle.draining
        self.write(503, *refusal, close=not keep)
        if not keep:
            self.end(LINGER_SECONDS)
        self.on_response_complete()
        return True

    def _is_kept(self) -> bool:
        return self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()

    def _advance(self, part: Literal["body"] | None) -> None:
        self._part, self._unparsed = part, 0
        if not self._ended:
            self._stop_timer()

    # -- the end -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        if not self._ended:
            super().on_response_complete()

    def drain(self) -> None:
        """Let the answer under way be the last, unless its head is sent: then its client does not
        know, and the next one is."""
        if self._is_answering() and not self.cycle.response_started:
            self._end_after(self.cycle)

    def shutdown(self) -> None:
        """Answer what was received; end the connection where nothing comes for IDLE_SECONDS."""
        self.timeout_keep_alive = IDLE_SECONDS
        self.drain()
        if self._ended or self._part is not None or self._is_answering():
            return
        idle_seconds = 0.0
        if self.timeout_keep_alive_task is not None:
            started_at = (
                self.timeout_keep_alive_task.when() - self._services.settings.keep_alive_seconds
            )
            idle_seconds = self.loop.time() - started_at
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            max(UNREAD_SECONDS, IDLE_SECONDS - idle_seconds), self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        self.end(CROSSING_SECONDS)

    def end(self, linger_seconds: float) -> None:
        """Send nothing more, and pass over what comes until the client has closed, too."""
        if self._ended or self.transport.is_closing():
            return
        self._ended = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(linger_seconds, self._on_timeout)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_after(self, cycle: RequestResponseCycle) -> None:
        """Let this answer be the last. One that was to be, and has not begun, is not any more."""
        if self._last is not None and not self._last.response_started:
            self._last.keep_alive, self._last.transport = True, self.transport
        self._last = cycle
        cycle.keep_alive, cycle.transport = False, _LastAnswer(self)  # type: ignore[assignment]

    # -- time and refusals ---------------------------------------------------------------------

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        if self._ended:
            self.transport.abort()
        elif self.flow.read_paused or self._received >= PROGRESS_BYTES:
            self._received = 0
            self._timer = self.loop.call_later(TIMEOUT_SECONDS["body"], self._on_timeout)
        elif self._part is None or self._shed:
            self.end(CROSSING_SECONDS)
        else:
            detail = (
                f"the {self._part} did not end within {TIMEOUT_SECONDS[self._part]:.0f} seconds"
            )
            self._refuse(408, "too-slow", "The request took too long", detail)

    def _refuse(self, status: int, slug: str, title: str, detail: str) -> None:
        """Say why, unless another answer is under way, and close."""
        if self.transport.is_closing():
            return
        self._stop_timer()
        self._ended = True
        waiting = self._running is not None and not self._running.response_complete
        own = self._part == "body" and self._running is self.cycle
        if waiting and not (own and not self.cycle.response_started):
            self.transport.close()
            return
        if waiting:  # its route waits for the rest of the body
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._write_last(problem(status, slug, title, detail))
        self.transport.write_eof()
        self.flow.pause_reading()
        self._timer = self.loop.call_later(LINGER_SECONDS, self._on_timeout)

    def write(self, status: int, fields: Fields, body: bytes, *, close: bool = True) -> None:
        """Write a whole answer. close: whether it is the last of this connection."""
        fields = [*self.server_state.default_headers, *fields]
        if close:
            fields.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % field for field in fields])
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], lines, body))

    def _write_last(self, content: Problem) -> None:
        answer = respond(content)
        self.write(answer.status_code, answer.raw_headers, bytes(answer.body))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)
