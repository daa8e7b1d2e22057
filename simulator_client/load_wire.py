"""One keep-alive connection of a load test: a prepared request out, the whole answer in.

Plain non-blocking sockets under one selector: 10 to 15 microseconds of the client's core a request
on the loopback, of which two thirds are the kernel's. A client library takes ten times that, and a
test of 10,000 requests a second would measure it.

It reads what an API answers and no more: HTTP/1.1 with Content-Length, chunked or to the end.
"""

import selectors
import socket
from functools import lru_cache
from typing import Final, NamedTuple

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
CHUNK_BYTES: Final = 256 * 1024
HEAD_BYTES: Final = 64 * 1024
BODY_BYTES: Final = 64 * 1024 * 1024
EMPTY: Final = (204, 304)
CHUNKED: Final = -1
TO_THE_END: Final = -2


class Lost(Exception):
    """A request without an answer; its text is the kind: refused, closed, broken."""


class Answer(NamedTuple):
    """A whole answer; keep: whether the connection carries another request."""

    status: int
    body: bytes
    keep: bool


class Address(NamedTuple):
    """Where a service listens, resolved once."""

    family: int
    host: str
    port: int


class Connection:
    """Opens itself when a request is there to be sent; one request at a time."""

    __slots__ = ("_address", "_data", "_open", "_selector", "_socket", "_unsent")

    def __init__(self, selector: selectors.BaseSelector, address: Address) -> None:
        self._selector, self._address = selector, address
        self._socket: socket.socket | None = None
        self._open = False
        self._unsent = b""
        self._data = b""

    def begin(self, request: bytes) -> None:
        """Send a request. Raises Lost."""
        if self._socket is None:
            self._unsent = request
            self._connect()
            return
        try:
            sent = self._socket.send(request)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Lost("closed") from error
        if sent < len(request):
            self._unsent = request[sent:]
            self._selector.modify(self._socket, READ | WRITE, self)

    def ready(self, mask: int) -> Answer | None:
        """Go on where the selector says so; the answer, once it is whole. Raises Lost."""
        assert self._socket is not None
        if mask & WRITE:
            self._send_rest()
        if not mask & READ:
            return None
        try:
            received = self._socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise Lost("closed" if self._open else "refused") from error
        data = self._data + received if self._data else received
        answer = whole(data, ended=not received)
        if answer is None:
            if not received:
                raise Lost("closed")
            self._data = data
            return None
        self._data = b""
        if not answer.keep:
            self.close()
        return answer

    def close(self) -> None:
        """Close it; the next request opens it again."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
        self._socket, self._open, self._unsent, self._data = None, False, b"", b""

    def _connect(self) -> None:
        family, host, port = self._address
        try:
            opened = socket.socket(family, socket.SOCK_STREAM)
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:  # out of descriptors, say
            raise Lost("refused") from error
        self._socket = opened
        self._selector.register(opened, READ | WRITE, self)
        opened.connect_ex((host, port))  # what comes of it is read when the selector says so

    def _send_rest(self) -> None:
        assert self._socket is not None
        if not self._open:
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise Lost("refused")
            self._open = True
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost("closed") from error
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._selector.modify(self._socket, READ, self)


def whole(data: bytes, *, ended: bool) -> Answer | None:
    """The answer that the bytes are; None where more has to come.

    ended: nothing more does. Raises Lost for what is no answer.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        if len(data) > HEAD_BYTES:
            raise Lost("broken")
        return None
    status, length, keep = _framing(data[:head_end])
    start = head_end + 4
    if length >= 0:
        end = start + length
        return Answer(status, data[start:end], keep) if len(data) >= end else None
    if length == CHUNKED:
        body = _unchunked(data, start)
        return None if body is None else Answer(status, body, keep)
    return Answer(status, data[start:], keep=False) if ended else None


@lru_cache(maxsize=1_024)  # a second's heads differ in their length alone
def _framing(head: bytes) -> tuple[int, int, bool]:
    """Status, length of the body (or CHUNKED, or TO_THE_END), and whether the connection stays."""
    status, lowered = head[9:12], head.lower()
    if not lowered.startswith(b"http/1.") or not status.isdigit():
        raise Lost("broken")
    code = int(status)
    keep = lowered.startswith(b"http/1.1") and b"\r\nconnection: close" not in lowered
    if length := _field(lowered, b"\r\ncontent-length:"):
        if not length.isdigit() or int(length) > BODY_BYTES:
            raise Lost("broken")
        return code, int(length), keep
    if _field(lowered, b"\r\ntransfer-encoding:") == b"chunked":
        return code, CHUNKED, keep
    return code, 0 if code in EMPTY else TO_THE_END, keep


def _field(head: bytes, name: bytes) -> bytes:
    """The value of a header, b"" where it is missing."""
    at = head.find(name)
    if at < 0:
        return b""
    at += len(name)
    end = head.find(b"\r\n", at)
    return head[at : end if end >= 0 else None].strip()


def _unchunked(data: bytes, at: int) -> bytes | None:
    """The body behind chunks; None where some are missing."""
    parts: list[bytes] = []
    while (end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:end].split(b";")[0], 16)
        except ValueError as error:
            raise Lost("broken") from error
        if not 0 <= size <= BODY_BYTES:
            raise Lost("broken")
        at = end + 2
        if size == 0:  # then trailers, and an empty line
            done = data.startswith(b"\r\n", at) or data.find(b"\r\n\r\n", at) >= 0
            return b"".join(parts) if done else None
        if len(data) < at + size + 2:
            return None
        parts.append(data[at : at + size])
        at += size + 2
    return None
