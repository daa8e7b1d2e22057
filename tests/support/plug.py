"""A connection of the service's protocol without a socket: bytes in, bytes out."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import httpx
import uvicorn
from uvicorn.server import ServerState

from service.http.protocol import BoundedProtocol, protocol
from tests.support.service import URL, Wire

ANSWER_S = 10.0
END = b"\r\n\r\n"


class _Transport(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.written = asyncio.Event()
        self.closed = self.paused = self.ended = False

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

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Plug:
    """A client's connection to a service under uvicorn, on the service's loop."""

    def __init__(self, wire: Wire) -> None:
        self._run = wire.run
        config = uvicorn.Config(
            wire.app,
            http=protocol(wire.services, wire.app.edge),  # type: ignore[arg-type]  # a factory is accepted
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
        )
        self.transport = _Transport()

        async def connect() -> BoundedProtocol:
            config.load()
            state = ServerState()
            state.connections = wire.services.connections
            state.default_headers = config.encoded_headers
            made = cast(Any, config.http_protocol_class)(
                config=config, server_state=state, app_state={}
            )
            made.connection_made(self.transport)
            return cast(BoundedProtocol, made)

        self.protocol: BoundedProtocol = wire.run(connect())

    def send(self, data: bytes) -> None:
        """Hand over bytes of a client, as the loop would."""

        async def give() -> None:
            self.protocol.data_received(data)

        self._run(give())

    def wait(self) -> None:
        """Wait until something is written."""
        self._run(asyncio.wait_for(self.transport.written.wait(), ANSWER_S))

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
