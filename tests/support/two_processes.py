"""A store whose calls go by turns to this process and to another one, which share a file.

python -m tests.support.two_processes SOCKET serves stores to whoever connects.
"""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any

from service.log.stores import Store, open_store
from service.log.stores.base import (
    CommitResult,
    Entry,
    Item,
    LogSummary,
    Removal,
    StoreSize,
)
from service.log.stores.store import Cursor, Keyed, KeyedValues, Ordered, Page
from tests.support.process import unmeasured

LENGTH_BYTES = 4


async def _receive(reader: asyncio.StreamReader) -> Any:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return pickle.loads(await reader.readexactly(length))  # noqa: S301  # our own process's


def _send(writer: asyncio.StreamWriter, *message: object) -> None:
    payload = pickle.dumps(message)
    writer.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)


class _Elsewhere:
    """A store that another process opens."""

    def __init__(self, url: str, socket: Path) -> None:
        self._url, self._socket = url, socket
        self._numbers, self._asked = count(), dict[int, asyncio.Future[Any]]()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        self._reading = asyncio.create_task(self._read())
        await self.ask("open", self._url)

    async def ask(self, verb: str, *given: object, **named: object) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        _send(self._writer, number, verb, given, named)
        return await answer

    async def close(self) -> None:
        await self.ask("close")
        self._writer.close()
        await self._reading

    async def _read(self) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                number, result, fault = await _receive(self._reader)
                answer = self._asked.pop(number)
                if answer.done():
                    continue
                if fault is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(fault)


class TwoProcesses(Store):
    """A store of which every other call is made by another process."""

    durability = ""
    shared = True

    def __init__(self, url: str, socket: Path) -> None:
        self._here = open_store(url, shared=True)
        self._there = _Elsewhere(url, socket)
        self._turns = cycle([self._there.ask, self._call_here])

    async def open(self) -> None:
        await self._here.open()
        await self._there.open()

    async def close(self) -> None:
        await self._there.close()
        await self._here.close()

    async def _call_here(self, verb: str, *given: object, **named: object) -> Any:
        return await getattr(self._here, verb)(*given, **named)

    async def _call(self, verb: str, *given: object, **named: object) -> Any:
        return await next(self._turns)(verb, *given, **named)

    async def experiments(self) -> list[str]:
        found: list[str] = await self._call("experiments")
        return found

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        results: list[CommitResult] = await self._call("commit", list(entries))
        return results

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        await self._call("wait", dict(positions), seconds)

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        found: list[bytes] = await self._call("due", experiment, now, limit)
        return found

    async def page(self, experiment: str, table: Ordered, after: Cursor, limit: int) -> Page:
        found: Page = await self._call("page", experiment, table, after, limit)
        return found

    async def get(self, experiment: str, table: Keyed, keys: Sequence[str]) -> KeyedValues:
        found: KeyedValues = await self._call("get", experiment, table, list(keys))
        return found

    async def stamps(self) -> dict[str, str]:
        found: dict[str, str] = await self._call("stamps")
        return found

    async def describe(self, experiment: str, *, whole: bool = False) -> LogSummary:
        found: LogSummary = await self._call("describe", experiment, whole=whole)
        return found

    async def measure(self) -> StoreSize:
        found: StoreSize = await self._call("measure")
        return found

    async def put(self, experiment: str, item: Item) -> None:
        await self._call("put", experiment, item)

    async def remove(self, experiment: str, what: Removal, limit: int) -> int:
        count: int = await self._call("remove", experiment, what, limit)
        return count

    async def present(self, process: str, doing: str, seconds: float) -> dict[str, str]:
        found: dict[str, str] = await self._call("present", process, doing, seconds)
        return found


@contextmanager
def other_process(socket: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run the other process; it listens at the socket."""
    command = [sys.executable, "-m", __name__, str(socket)]
    with subprocess.Popen(
        command, env=unmeasured(environment), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Make the calls of one connection on a store of its own."""
    stores, tasks = list[Store](), set[asyncio.Task[None]]()

    async def answer(number: int, verb: str, given: Any, named: Any) -> None:
        result, fault = None, None
        try:
            if verb == "open":
                stores.append(open_store(*given, shared=True))
            result = await getattr(stores[0], verb)(*(() if verb == "open" else given), **named)
        except Exception as raised:  # for whoever called
            fault = raised
        _send(writer, number, result, fault)

    with suppress(asyncio.IncompleteReadError):
        while True:
            task = asyncio.create_task(answer(*await _receive(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    writer.close()


async def _serve(socket: str) -> None:
    server = await asyncio.start_unix_server(_serve_one, socket)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
