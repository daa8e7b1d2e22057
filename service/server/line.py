"""The line between a service and one of its workers: messages over a pair of sockets.

The line of a worker whose service was killed ends, and so does the worker.
"""

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import Any, Self

import msgspec

from service.settings import Settings
from service.telemetry.siblings import Subject

LENGTH_BYTES = 4


class StartWork(msgspec.Struct, tag=True):
    """What a worker begins with: the first message to it.

    settings      of the service, pickled: a file of variables may have changed since its start
    count         workers of the service
    early         it listens before its log is recovered, and answers probes
    trainer_key   that the trainer sends; empty: none runs, or no keys are needed
    checkpoints   folder of the service's checkpoints
    """

    settings: bytes
    count: int
    early: bool
    trainer_key: str
    checkpoints: str | None

    @classmethod
    def of(cls, settings: Settings, **more: Any) -> Self:
        return cls(pickle.dumps(settings), **more)

    def read_settings(self) -> Settings:
        settings: Settings = pickle.loads(self.settings)  # noqa: S301  # our own process's
        return settings


class ServesNow(msgspec.Struct, tag=True):
    """Sent by a worker that serves all routes."""

    experiments: list[str]


class Stop(msgspec.Struct, tag=True):
    """Stop in order."""


class Reload(msgspec.Struct, tag=True):
    """Read keys and settings again."""


class CountsAsked(msgspec.Struct, tag=True):
    """What did you count? Or to the service: what did all workers count?"""

    number: int
    about: Subject


class CountsTold(msgspec.Struct, tag=True):
    number: int
    found: list[bytes]


Message = StartWork | ServesNow | Stop | Reload | CountsAsked | CountsTold

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def receive_begin(end: socket.socket) -> StartWork:
    """Wait for the first message to a worker. Raises EOFError where the service is gone."""

    def read(size: int) -> bytes:
        found = end.recv(size, socket.MSG_WAITALL)
        if len(found) < size:
            raise EOFError("the service has ended")
        return found

    message = _decode(read(int.from_bytes(read(LENGTH_BYTES), "big")))
    if not isinstance(message, StartWork):
        raise TypeError(f"a worker begins with StartWork, not with {type(message).__name__}")
    return message


class Line:
    """One end of a line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers, self._ended = count(), False
        self._asked = dict[int, asyncio.Future[list[bytes]]]()

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send a message; one to a process that has ended is lost."""
        if self._writer.is_closing():
            return
        payload = _encode(message)
        self._writer.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)

    async def messages(self) -> AsyncIterator[Message]:
        """Yield what the other side sends, but for its answers, until it ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
                message = _decode(await self._reader.readexactly(length))
                if not isinstance(message, CountsTold):
                    yield message
                elif (asked := self._asked.get(message.number)) and not asked.done():
                    asked.set_result(message.found)
        self._ended = True
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(TimeoutError())

    async def ask(self, about: Subject, seconds: float) -> list[bytes]:
        """Ask the other side what was counted. Raises TimeoutError, also where it has ended."""
        if self._ended:
            raise TimeoutError
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(CountsAsked(number, about))
        try:
            return await asyncio.wait_for(answer, seconds)
        finally:
            del self._asked[number]

    def close(self) -> None:
        self._writer.close()
