"""A TCP proxy between a process and its store that can be told to misbehave."""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal, Self

Kind = Literal["delay", "hold", "cut", "refuse", "swallow", "tear"]
KINDS: Final[tuple[Kind, ...]] = ("delay", "hold", "cut", "refuse", "swallow", "tear")

CHUNK_BYTES: Final = 65_536
TORN_BYTES: Final = 3
"""Of a torn reply: enough to look like the beginning of one."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection through the proxy.

    gaps   a reply on it was swallowed: the client would take later ones for answers to other
           commands
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    gaps: bool = False

    def cut(self) -> None:
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Pass bytes on to 127.0.0.1:`upstream`, until a fault begins.

    delay     both ways, each chunk `delay_s` later
    hold      nothing arrives before the fault ends, as behind a partition
    cut       every connection breaks; new ones are accepted
    refuse    the same, and new connections break at once
    swallow   commands arrive, their replies do not
    tear      a reply breaks off after its first bytes, and so does its connection
    """

    def __init__(self, upstream: int) -> None:
        self.port = 0
        self.holding = 0  # chunks that wait
        self._upstream = upstream
        self._fault: Kind | None = None
        self._delay_s = 0.0
        self._passing = asyncio.Event()
        self._passing.set()
        self._touched = 0
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            while self._serving:  # asyncio complains of handlers that are cancelled
                self._cut()
                await asyncio.wait(self._serving, timeout=0.1)

    async def episode(self, kind: Kind, seconds: float, delay_s: float = 0.3) -> bool:
        """Misbehave for a while. Return whether any connection or byte was affected."""
        before, self._delay_s = self._touched, delay_s
        if kind in ("cut", "refuse"):
            self._touched += len(self._links)
            self._cut()
        if kind == "hold":
            self._passing.clear()
        if kind != "cut":
            self._fault = kind
            try:
                await asyncio.sleep(seconds)
            finally:
                self._fault = None
                self._passing.set()
        for link in [link for link in self._links if link.gaps]:
            link.cut()
        return self._touched > before

    def _cut(self) -> None:
        for link in self._links:
            link.cut()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._fault == "refuse":
            self._touched += 1
            writer.transport.abort()
            return
        try:
            replies, server = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:  # the server is down
            writer.transport.abort()
            return
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

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        replies: bool,
    ) -> None:
        """Copy bytes until either side is gone."""
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                fault = self._fault
                if fault in ("delay", "hold"):
                    self._touched += 1
                    self.holding += 1
                    try:
                        await asyncio.sleep(self._delay_s if fault == "delay" else 0)
                        await self._passing.wait()
                    finally:
                        self.holding -= 1
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
