"""HTTP/1.1 over keep-alive connections: a whole request out, a whole answer in.

Why no HTTP library: on 2 cores against an echo on the same host httpx costs 1.2 to 1.5 ms a
request, this module 0.06 ms. A replay is a chain of requests and a load test has thousands a
second: with a library, both would measure the client.

It does what an API client needs: no proxies, no HTTP/2, no redirects, no streaming.
"""

import asyncio
import ssl
from collections import defaultdict
from functools import cached_property, lru_cache
from typing import Final, NamedTuple, cast

# uvicorn closes a connection after 5 s without a request. A connection nearly that old could
# close under the next request, which would count as a lost answer.
IDLE_S: Final = 3.0
HEAD_BYTES: Final = 64 * 1024
BODY_BYTES: Final = 64 * 1024 * 1024
WITHOUT_BODY: Final = (204, 304)
CHUNKED: Final = -1
UNTIL_CLOSED: Final = -2


class Lost(Exception):
    """A request without an answer. Its text is the reason.

    refused    no connection: the request never left
    unreached  no connection in time: the request never left
    timeout    no answer in time
    closed     the connection ended before the answer did
    broken     the answer is not HTTP
    """


class Answer(NamedTuple):
    """A whole answer. keep: whether the connection can carry another request."""

    status: int
    head: bytes  # status line and headers
    body: bytes
    keep: bool

    def headers(self) -> dict[str, str]:
        lines = (line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in lines}


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class Pool:
    """Connections by origin, opened when no idle one is left; the newest idle one goes first."""

    def __init__(self) -> None:
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)

    async def ask(
        self, origin: Origin, request: bytes, *, connect_s: float | None, answer_s: float | None
    ) -> Answer:
        """Send a request and return its answer. Raises Lost."""
        idle = self._idle[origin]
        connection = None
        while idle and connection is None:
            connection = idle.pop()
            if not connection.usable:
                connection.close()
                connection = None
        if connection is None:
            connection = await self._open(origin, connect_s)
        answer = await connection.ask(request, answer_s)
        if answer.keep:
            idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    async def _open(self, origin: Origin, within_s: float | None) -> "Connection":
        tls = self._tls if origin.scheme == "https" else None
        try:
            async with asyncio.timeout(within_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, origin.host, origin.port, ssl=tls
                )
        except TimeoutError as error:
            raise Lost("unreached") from error
        except OSError as error:
            raise Lost("refused") from error
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class Connection(asyncio.Protocol):
    """One open connection; one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._data = bytearray()
        self._used_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether the connection is open and young enough for another request."""
        return self._transport is not None and self._loop.time() - self._used_at < IDLE_S

    async def ask(self, request: bytes, within_s: float | None) -> Answer:
        """Send a request and return its answer. Raises Lost, and is then closed."""
        if self._transport is None:
            raise Lost("closed")
        self._waiting = self._loop.create_future()
        timer = None if within_s is None else self._loop.call_later(within_s, self._lose, "timeout")
        self._transport.write(request)
        try:
            answer = await self._waiting
        except BaseException:
            self.close()
            raise
        finally:
            if timer:
                timer.cancel()
            self._waiting = None
        self._used_at = self._loop.time()
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer once the data is whole (asyncio calls this)."""
        if self._waiting is None or self._waiting.done():
            self.close()  # an answer without a request
            return
        self._data += data
        self._answer(ended=False)

    def connection_lost(self, error: Exception | None) -> None:
        """Take the data as an answer if it can end so (asyncio calls this)."""
        self._transport = None
        if error is None:
            self._answer(ended=True)
        self._lose("closed")

    def _answer(self, *, ended: bool) -> None:
        if self._waiting is None or self._waiting.done():
            return
        try:
            answer = whole(self._data, ended=ended)
        except Lost as lost:
            self._waiting.set_exception(lost)
            return
        if answer is not None:
            self._data.clear()
            self._waiting.set_result(answer)

    def _lose(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Lost(reason))


def whole(data: bytes | bytearray, *, ended: bool) -> Answer | None:
    """Parse an answer; None if more data has to come.

    ended: no more data will come. Raises Lost("broken") for data that is no answer.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end > HEAD_BYTES or (head_end < 0 and len(data) > HEAD_BYTES):
        raise Lost("broken")
    if head_end < 0:
        return None
    head = bytes(data[:head_end])
    status, length, keep = _framing(head)
    start = head_end + 4
    if length >= 0:
        end = start + length
        return Answer(status, head, bytes(data[start:end]), keep) if len(data) >= end else None
    if length == CHUNKED:
        body = _unchunked(data, start)
        return None if body is None else Answer(status, head, body, keep)
    if len(data) - start > BODY_BYTES:
        raise Lost("broken")
    return Answer(status, head, bytes(data[start:]), keep=False) if ended else None


@lru_cache(maxsize=1_024)  # the heads of one second differ in the body's length alone
def _framing(head: bytes) -> tuple[int, int, bool]:
    """Return status, length of the body (or CHUNKED, UNTIL_CLOSED), and whether to keep the
    connection."""
    lowered = head.lower()
    version, status = lowered[:8], lowered[9:12]
    if not version.startswith(b"http/1.") or not status.isdigit():
        raise Lost("broken")
    keep = version == b"http/1.1" and b"\r\nconnection: close" not in lowered
    if length := _field(lowered, b"\r\ncontent-length:"):
        return int(status), _size(length, 10), keep
    if _field(lowered, b"\r\ntransfer-encoding:") == b"chunked":
        return int(status), CHUNKED, keep
    return int(status), 0 if int(status) in WITHOUT_BODY else UNTIL_CLOSED, keep


def _field(head: bytes, name: bytes) -> bytes:
    """Return the value of a header, b"" if it is missing."""
    _, found, rest = head.partition(name)
    return rest.split(b"\r\n", 1)[0].strip() if found else b""


def _size(text: bytes, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError as error:
        raise Lost("broken") from error
    if not 0 <= size <= BODY_BYTES:
        raise Lost("broken")
    return size


def _unchunked(data: bytes | bytearray, at: int) -> bytes | None:
    """Return the body behind chunks; None if some are missing."""
    parts: list[bytes | bytearray] = []
    while (end := data.find(b"\r\n", at)) >= 0:
        size = _size(bytes(data[at:end]).split(b";")[0], 16)
        at = end + 2
        if size == 0:  # then trailers, and an empty line
            done = data.startswith(b"\r\n", at) or data.find(b"\r\n\r\n", at) >= 0
            return b"".join(parts) if done else None
        if len(data) < at + size + 2:
            return None
        parts.append(data[at : at + size])
        at += size + 2
    return None
