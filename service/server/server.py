"""uvicorn's server with an end that resets no connection."""

import asyncio
import contextlib
import ctypes
import select
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final

import uvicorn

from service.http.services import Services

HANDSHAKE_SECONDS: Final = 0.1
"""Seconds for connections whose handshake is under way: closing the socket would reset them."""

SO_ATTACH_FILTER: Final = 26
NO_NEW_CONNECTIONS: Final = (
    (0x30, 0, 0, 13),  # load the flags of the TCP header
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # of a packet with SYN alone ...
    (0x06, 0, 0, 0),  # ... keep nothing;
    (0x06, 0, 0, 0xFFFFFFFF),  # of all others, everything
)
"""Program of a Linux socket filter: opcode, jumps and operand of each instruction."""


class Server(uvicorn.Server):
    """Leaves signals to `Signals`: uvicorn would raise them again after its own shutdown, before
    the state is saved.

    stopping   set once it was told to stop
    """

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self.server_state.connections = self._connections = services.connections
        self._lifecycle = services.lifecycle
        self._drain_seconds = services.settings.drain_seconds
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Begin to drain; `serve` then ends in order."""
        self._lifecycle.draining = self.should_exit = True
        self.stopping.set()
        for connection in list(self._connections):
            connection.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait for it, stop to listen, then answer what was received
        and end the connections."""
        if not self._lifecycle.starting:
            await asyncio.sleep(self._drain_seconds)
        if sockets:
            await _accept_last(sockets[0])
        await super().shutdown(sockets)


async def _accept_last(listener: socket.socket) -> None:
    """Let the loop accept the connections that wait: closing the socket would reset them. New ones
    are ignored, where the system can do that, until the socket is closed and refuses them."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            _ignore_new_connections(listener)
            await asyncio.sleep(HANDSHAKE_SECONDS)
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while waiting.poll(0):  # noqa: ASYNC110  # the kernel sets no event
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the loop tells the protocol of the last one


def _ignore_new_connections(listener: socket.socket) -> None:
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in NO_NEW_CONNECTIONS)
    kept = ctypes.create_string_buffer(program)
    option = struct.pack("HP", len(NO_NEW_CONNECTIONS), ctypes.addressof(kept))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)
