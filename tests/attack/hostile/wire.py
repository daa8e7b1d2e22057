"""One shot over a socket of its own: bytes that no HTTP library would send."""

import asyncio
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import Final

from simulator_client.wire import Lost, whole
from tests.attack.hostile.shots import Answer, Shot

CHUNK_BYTES: Final = 65_536
KEPT_BYTES: Final = 64
"""What a client that does not read takes in at once, as its system rounds it up."""
SOURCES: Final = 8


ANSWER_S: Final = 60.0
"""For an answer to a whole request."""
END_S: Final = 45.0
"""For the service to end one that is not whole."""


def source_of(number: int) -> str:
    """An address of an attacker; the other tenant has 127.0.0.1. Only Linux has them all."""
    return f"127.0.0.{2 + number % SOURCES}"


async def fire(shot: Shot, host: str) -> Answer:
    """Send it, and wait for what comes of it."""
    begun = monotonic()
    limit_s = ANSWER_S if shot.whole and shot.reads else END_S
    try:
        connection = await _connected(shot, host)
    except OSError:
        return Answer("unreached", seconds=monotonic() - begun)
    try:
        async with asyncio.timeout(limit_s):
            kind, body = await _exchange(connection, shot)
    except TimeoutError:
        kind, body = "open", b""
    finally:
        connection.close()
    return Answer(kind, body, monotonic() - begun)


async def _connected(shot: Shot, host: str) -> socket.socket:
    """Raises OSError."""
    name, _, port = host.rpartition(":")
    made = socket.socket()
    made.setblocking(False)
    try:
        if not shot.reads:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KEPT_BYTES)
        with suppress(OSError):  # a host without these addresses has one
            made.bind((source_of(shot.source), 0))
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_connect(made, (name, int(port)))
    except (OSError, TimeoutError):
        made.close()
        raise
    # The port is free at once: a campaign has more connections than a host has ports.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return made


async def _exchange(connection: socket.socket, shot: Shot) -> tuple[str, bytes]:
    sending = asyncio.create_task(_send(connection, shot))
    try:
        if shot.reads:
            return await _read(connection)
        await sending
        await asyncio.Event().wait()  # until patience ends
        raise AssertionError
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


async def _send(connection: socket.socket, shot: Shot) -> None:
    """Until all is sent or the service has closed: what it said before is read elsewhere."""
    loop, sent = asyncio.get_running_loop(), 0
    with suppress(OSError):
        for piece in shot.pieces:
            await loop.sock_sendall(connection, piece)
            sent += len(piece)
            await asyncio.sleep(shot.pause_s)
        while sent < shot.again:
            await loop.sock_sendall(connection, shot.pieces[-1])
            sent += len(shot.pieces[-1])
            await asyncio.sleep(shot.pause_s)


async def _read(connection: socket.socket) -> tuple[str, bytes]:
    """The first answer."""
    loop, data = asyncio.get_running_loop(), b""
    while True:
        try:
            received = await loop.sock_recv(connection, CHUNK_BYTES)
        except OSError:
            received = b""
        data += received
        try:
            answer = whole(data, ended=not received)
        except Lost:
            return "broken", data
        if answer is not None:
            return str(answer.status), answer.body
        if not received:
            return "closed", data
