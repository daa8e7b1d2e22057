"""A TCP proxy between a process and its Redis that can be told to misbehave."""

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, Self

from tests.chaos.hosts import HERE, Host

Kind = Literal["delay", "cut", "refuse", "swallow", "tear"]
KINDS: Final[tuple[Kind, ...]] = ("delay", "cut", "refuse", "swallow", "tear")

CHUNK_BYTES: Final = 65_536
TORN_BYTES: Final = 3
"""Of a reply that is torn: enough to be taken for the beginning of one."""
SILENT_S: Final = 3
"""So long without a sign of life, and a client is asked for one: it may have died behind a line
that was down, and then nothing says so."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection through the proxy.

    gaps   a reply on it was swallowed: later ones would be taken for answers to other commands
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    gaps: bool = False

    def cut(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Passes bytes on to 127.0.0.1:`upstream` of its host, until an episode of a fault begins.

    delay     both ways, each chunk `delay_s` later
    cut       every connection breaks; new ones are taken
    refuse    the same, and new connections break at once
    swallow   commands arrive, their replies do not
    tear      a reply breaks off after its first bytes, and so does its connection
    """

    def __init__(self, upstream: int, host: Host = HERE) -> None:
        self.faults: Counter[Kind] = Counter()
        self.port = 0
        self._upstream, self._host = upstream, host
        self._fault: Kind | None = None
        self._delay_s = 0.0
        self._touched = 0
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Self:
        listener = self._host.socket()
        listener.bind((self._host.address, self.port))
        self._server = await asyncio.start_server(self._taken, sock=listener)
        self.port = listener.getsockname()[1]
        return self

    @property
    def connections(self) -> int:
        return len(self._links)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            while self._serving:  # asyncio complains of handlers that are cancelled
                self._cut()
                await asyncio.wait(self._serving, timeout=0.1)

    async def episode(self, kind: Kind, seconds: float, delay_s: float = 0.3) -> bool:
        """Misbehave for a while. False where nobody was there to notice: no fault then."""
        before, self._delay_s = self._touched, delay_s
        if kind in ("cut", "refuse"):
            self._touched += len(self._links)
            self._cut()
        if kind != "cut":
            self._fault = kind
            try:
                await asyncio.sleep(seconds)
            finally:
                self._fault = None
        for link in [link for link in self._links if link.gaps]:
            link.cut()
        noticed = self._touched > before
        self.faults[kind] += noticed
        return noticed

    def _cut(self) -> None:
        for link in self._links:
            link.cut()

    def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._fault == "refuse":
            self._touched += 1
            writer.transport.abort()
            return
        try:
            replies, server = await self._connected()
        except OSError:  # Redis is down
            writer.transport.abort()
            return
        if self._host.namespace is not None:
            line: socket.socket = writer.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
                line.setsockopt(socket.IPPROTO_TCP, option, SILENT_S)
        link = _Link(writer, server)
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._pump(link, reader, server, replies=False)),
            asyncio.create_task(self._pump(link, replies, writer, replies=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)
            link.cut()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the upstream. Raises OSError."""
        line = self._host.socket()
        try:
            line.setblocking(False)
            await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", self._upstream))
            return await asyncio.open_connection(sock=line)
        except BaseException:
            line.close()
            raise

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        replies: bool,
    ) -> None:
        """Until either side is gone."""
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                fault = self._fault
                if fault == "delay":
                    self._touched += 1
                    await asyncio.sleep(self._delay_s)
                elif replies and fault == "tear":
                    self._touched += 1
                    writer.write(chunk[:TORN_BYTES])
                    await asyncio.sleep(0)
                    return
                elif replies and (link.gaps or fault == "swallow"):
                    self._touched += 1
                    link.gaps = True
                    continue
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return
