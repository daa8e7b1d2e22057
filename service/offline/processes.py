"""Parts of a work on a log, by several processes at once.

Each process is a Python of its own that takes one part after another: a function of this package
and what it is asked, on standard input, and what it found on standard output. Both ends are one
program, so they speak pickle. A process whose parent is gone ends with its part.
"""

import asyncio
import os
import pickle
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any, BinaryIO, Self

import uvloop

from service.errors import ForageError, ProcessEnded
from service.log.reading import SAY_SECONDS

CountMore = Callable[[int], None]
"""Function that is told how many more of the things that a part consists of are done."""

_LENGTH = struct.Struct("<Q")

_DONE, _FOUND, _FAILED = range(3)
"""What a process says: how many more are done, what it found, why it cannot."""


def uncounted(done: int) -> None:
    """Pass over how many more are done."""


class Processes(AbstractAsyncContextManager["Processes"]):
    """Processes that wait for parts, from the beginning of the context to its end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Queue[Process]()
        self._all = list[Process]()

    async def __aenter__(self) -> Self:
        for _ in range(self.count):
            # A session of its own: an interrupt at the terminal is for this process, which ends it.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__), stdin=PIPE, stdout=PIPE, start_new_session=True
            )
            self._all.append(process)
            self._free.put_nowait(process)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._all:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def run(
        self, work: Callable[..., Awaitable[Any]], *asked: object, count: CountMore = uncounted
    ) -> Any:
        """Run a part in the next free process. Raises what the part does, or ProcessEnded.

        work   a function of a module; it takes what is asked, and a `CountMore` as `count`
        """
        process = await self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            content = pickle.dumps((work, asked))
            process.stdin.writelines([_LENGTH.pack(len(content)), content])
            await process.stdin.drain()
            while True:
                (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
                kind, said = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301
                if kind == _DONE:
                    count(said)
                    continue
                self._free.put_nowait(process)
                if kind == _FAILED:
                    raise said
                return said
        except (ConnectionError, asyncio.IncompleteReadError):
            status = await process.wait()
            raise ProcessEnded(f"a process of it was ended with status {status}") from None

    async def map(
        self,
        work: Callable[..., Awaitable[Any]],
        asked: Sequence[Sequence[Any]],
        count: CountMore = uncounted,
    ) -> list[Any]:
        """Run a part for each of what is asked, and return what they found in this order."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.run(work, *one, count=count)) for one in asked]
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None
        return [task.result() for task in tasks]


@asynccontextmanager
async def sharing(count: int) -> AsyncIterator[Processes | None]:
    """Yield as many processes; None where one does the work, which is this one."""
    if count == 1:
        yield None
        return
    async with Processes(count) as processes:
        yield processes


def _write(file: BinaryIO, kind: int, said: object) -> None:
    content = pickle.dumps((kind, said))
    file.write(_LENGTH.pack(len(content)) + content)
    file.flush()


def main() -> None:
    """Take parts until the parent is gone, or needs no more."""
    try:
        _take_parts()
    except BrokenPipeError:
        os._exit(1)  # Python would write what is left, and say that it cannot


def _take_parts() -> None:
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while head := asked.read(_LENGTH.size):
        work, arguments = pickle.loads(asked.read(*_LENGTH.unpack(head)))  # noqa: S301
        done, said_at = 0, monotonic()

        def count(more: int) -> None:
            nonlocal done, said_at
            done += more
            if (now := monotonic()) > said_at + SAY_SECONDS:
                _write(answers, _DONE, done)
                done, said_at = 0, now

        try:
            found = uvloop.run(work(*arguments, count=count))
        except ForageError as fault:
            _write(answers, _FAILED, fault)
        else:
            _write(answers, _FOUND, found)


if __name__ == "__main__":
    main()
