"""Logs that lose their last events: what they held is read before, so that it is known what is
gone."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from redis import Redis

from service.log.replay import PAGE
from service.log.stores.base import KeptRow, Record
from service.state.events import ExperimentDefined, decode_event, settlements_of
from tests.chaos.judge import Cut
from tests.chaos.processes import NAME, Process
from tests.chaos.proxy import Proxy
from tests.chaos.verdict import reading

TAIL: Final = 4_000
"""Events and rows that are read before a cut, which takes fewer."""
CUT_BYTES: Final = 300_000
STILL_S: Final = 0.1
COMMAND_S: Final = 120.0


@dataclass(frozen=True)
class Tail:
    """The last events and decision rows of a log."""

    events: Sequence[Record]
    rows: Sequence[KeptRow]

    @property
    def position(self) -> int:
        return self.events[-1].position if self.events else 0

    def after(self, kept: "Tail") -> Cut:
        """What is gone, where `kept` is left: it may hold other events at the same positions, if
        it is a copy from before an earlier cut."""
        cut = Cut(kept.position, self.position, Counter())
        left = {record.position: record.payload for record in kept.events}
        first = min(left, default=kept.position + 1)
        for record in self.events:
            if record.position >= first and left.get(record.position) != record.payload:
                for one in settlements_of(decode_event(record.payload)):
                    cut.settled.update((one.decision, each.arm) for each in one.settled)
        cut.rows = {row.id for row in self.rows} - {row.id for row in kept.rows}
        return cut


async def read_tail(url: str, last: int = TAIL) -> Tail:
    events, rows = list[Record](), list[KeptRow]()
    async with reading(url) as store:
        found = await store.describe(NAME)
        after = max(found.position - last, 0)
        while page := await store.read(NAME, after, PAGE):
            events += page
            after = page[-1].position
        after = max(found.row - last, 0)
        while listed := await store.decisions(NAME, after, PAGE):
            rows += listed
            after = listed[-1].number
    return Tail(events, rows)


async def cut_tail(
    url: str,
    files: Sequence[Path],
    cut: Callable[[], None],
    start: Callable[[], object] = lambda: None,
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Cut the end of a stopped store, and start it. A cut that leaves no log is taken back for a
    smaller one: services recover alone from the loss of a tail, and an emptied store needs a
    person (`empty`, `lose_file`)."""
    whole = {file: file.read_bytes() for file in files if file.exists()}
    while True:
        cut()
        await asyncio.to_thread(start)
        if await _defined(url):
            return
        stop()
        for file, content in whole.items():
            file.write_bytes(content)


async def _defined(url: str) -> bool:
    """Whether a log begins with its definition: not if it was emptied, even if services have
    appended to it since."""
    async with reading(url) as store:
        first = await store.read(NAME, 0, 1)
    return bool(first) and isinstance(decode_event(first[0].payload), ExperimentDefined)


@contextmanager
def frozen(processes: Sequence[Process]) -> Iterator[None]:
    """They do nothing inside: what is read there is all that they have written."""
    for process in processes:
        process.freeze()
    try:
        yield
    finally:
        for process in processes:
            process.thaw()


@contextmanager
def held(processes: Sequence[Process]) -> Iterator[None]:
    """Those that end are not started again inside."""
    for process in processes:
        process.held = True
    try:
        yield
    finally:
        for process in processes:
            process.held = False


async def quiet_tail(url: str, proxies: Sequence[Proxy], last: int = TAIL) -> Tail:
    """Read the tail once everything under way to Redis, also in the proxies, has arrived."""
    tail, still = await read_tail(url, last), False
    while not still:
        held = any(proxy.holding for proxy in proxies)
        await asyncio.sleep(STILL_S)
        before, tail = tail, await read_tail(url, last)
        still = not held and (tail.position, len(tail.rows)) == (before.position, len(before.rows))
    return tail


def run_forage(*words: str) -> None:
    """A command that has to succeed. Raises CalledProcessError."""
    command = [sys.executable, "-m", "service", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)


DUMP = """
local found = {}
for place, key in ipairs(redis.call('KEYS', '*')) do
  found[place] = {key, redis.call('DUMP', key), redis.call('PTTL', key)}
end
return found
"""


def dump_redis(url: str) -> list[tuple[bytes, bytes, int]]:
    """Return key, value and milliseconds to live of all keys, as of one instant."""
    with Redis.from_url(url) as client:
        return [tuple(each) for each in client.eval(DUMP, 0)]


def restore_redis(url: str, copy: list[tuple[bytes, bytes, int]]) -> None:
    """Replace all keys by those of a dump, at one instant: a proxy may still hold commands."""
    with Redis.from_url(url) as client, client.pipeline() as transaction:
        transaction.flushall()
        for key, value, ttl in copy:
            transaction.restore(key, max(ttl, 0), value)
        transaction.execute()


def remove(file: Path, *suffixes: str) -> None:
    """Files of an embedded store."""
    for suffix in suffixes:
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def append_only_file(folder: Path) -> Path:
    """The part of Redis' append-only file that it writes to."""
    manifest = (folder / "appendonlydir" / "appendonly.aof.manifest").read_text().splitlines()
    newest = [line.split()[1] for line in manifest if line.endswith("type i")][-1]
    return folder / "appendonlydir" / newest


def cut_append_only(file: Path, rng: Random) -> None:
    """Cut the end of Redis' append-only file before a transaction, as redis-check-aof does.

    If a command inside a transaction is torn, Redis 7.0 leaves the commands before it in the file,
    and plays them at its next start: they would change what was acknowledged meanwhile.
    """
    size = file.stat().st_size
    end = size - rng.randrange(1, min(CUT_BYTES, size))
    os.truncate(file, max(file.read_bytes().rfind(b"*1\r\n$5\r\nMULTI\r\n", 0, end), 0))


def cut_wal(file: Path, rng: Random) -> None:
    """Cut the end of SQLite's write-ahead log, or all of it."""
    wal = file.with_name(f"{file.name}-wal")
    file.with_name(f"{file.name}-shm").unlink(missing_ok=True)
    size = wal.stat().st_size if wal.exists() else 0
    if rng.random() < 0.3 or size < 2:
        wal.unlink(missing_ok=True)
    else:
        os.truncate(wal, max(size - rng.randrange(1, CUT_BYTES), 0))
