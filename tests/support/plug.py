"""A connection of the service's protocol without a socket: bytes in, bytes out."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar, cast

import httpx
import uvicorn
from uvicorn.server import ServerState

from service.http.bounded import BoundedProtocol, protocol
from tests.support.service import URL, Wire

T = TypeVar("T")


class Run(Protocol):
    """Run a loop until a coroutine is done."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


ANSWER_S = 10.0
END = b"\r\n\r\n"


class _Transport(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self, peer: str) -> None:
        super().__init__({"peername": (peer, 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.written = asyncio.Event()
        self.closed = self.paused = self.ended = False
        self.unread = 0

    def write(self, data: Any) -> None:
        self.sent += bytes(data)
        self.written.set()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Connection:
    """A client's connection to an application under uvicorn, on the loop of `run`."""

    def __init__(self, app: Any, http: Any, run: Run, peer: str = "127.0.0.1") -> None:
        self._run = run
        config = uvicorn.Config(
            app, http=http, lifespan="off", log_config=None, proxy_headers=False
        )
        self.transport = _Transport(peer)

        async def connect() -> BoundedProtocol:
            config.load()
            state = ServerState()
            state.default_headers = config.encoded_headers
            made = cast(Any, config.http_protocol_class)(
                config=config, server_state=state, app_state={}
            )
            made.connection_made(self.transport)
            return cast(BoundedProtocol, made)

        self.protocol: BoundedProtocol = run(connect())

    def send(self, data: bytes) -> None:
        """Hand over bytes of a client, as the loop would."""

        async def give() -> None:
            self.protocol.data_received(data)

        self._run(give())

    def receive(self) -> httpx.Response:
        """Return the next whole answer."""
        return self._run(self._receive())

    async def _receive(self) -> httpx.Response:
        while (found := _whole(self.transport.sent)) is None:
            self.transport.written.clear()
            await asyncio.wait_for(self.transport.written.wait(), ANSWER_S)
        answer, self.transport.sent = found
        return answer

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send one request and return its answer."""
        self.send(head(path, len(body), headers) + body)
        return self.receive()


class Plug(Connection):
    """A client's connection to a service, on its loop."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(
            wire.app, protocol(wire.services.connections, wire.services.shedding), wire.run
        )


def head(path: str, length: int, headers: Mapping[str, str], method: str = "POST") -> bytes:
    """Return a request up to its body."""
    fields = {"Host": "forage", **headers, "Content-Length": str(length)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def _whole(data: bytes) -> tuple[httpx.Response, bytes] | None:
    """Return the first whole answer and the bytes after it."""
    start = data.find(END) + len(END)
    if start < len(END):
        return None
    line, *fields = data[: start - len(END)].split(b"\r\n")
    pairs = [tuple(field.split(b": ", 1)) for field in fields]
    headers = httpx.Headers(cast(Any, pairs))
    stop = start + int(headers["content-length"])
    if len(data) < stop:
        return None
    request = httpx.Request("POST", URL)
    answer = httpx.Response(
        int(line.split()[1]), headers=headers, content=data[start:stop], request=request
    )
    return answer, data[stop:]
