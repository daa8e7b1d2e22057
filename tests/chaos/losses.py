"""Logs that lose their last events: what they held is read before, so that it is known what is
gone."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from redis import Redis

from service.log.stores import open_store
from service.log.stores.base import KeptRow, Record
from service.state.events import Learned, decode_event, outcomes
from tests.chaos.judge import Cut
from tests.chaos.processes import NAME, Process

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
        """What is gone, where `kept` is left."""
        cut = Cut(kept.position, self.position, Counter())
        for record in self.events:
            if record.position > kept.position:
                event = decode_event(record.payload)
                if isinstance(event, Learned):
                    cut.settled.update(
                        (event.decision, each.settled.arm) for each in outcomes(event)
                    )
        left = {row.id for row in kept.rows}
        cut.rows = {row.id for row in self.rows} - left
        return cut


async def read_tail(url: str, last: int = TAIL) -> Tail:
    store = open_store(url, readonly=True)
    await store.open()
    try:
        found = await store.describe(NAME)
        events, rows = list[Record](), list[KeptRow]()
        after = max(found.position - last, 0)
        while page := await store.read(NAME, after, 1_000):
            events += page
            after = page[-1].position
        after = max(found.row - last, 0)
        while listed := await store.decisions(NAME, after, 1_000):
            rows += listed
            after = listed[-1].number
        return Tail(events, rows)
    finally:
        await store.close()


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


async def quiet_tail(url: str, last: int = TAIL) -> Tail:
    """Once what was on its way has arrived."""
    tail = await read_tail(url, last)
    while True:
        await asyncio.sleep(STILL_S)
        again = await read_tail(url, last)
        if (again.position, len(again.rows)) == (tail.position, len(tail.rows)):
            return again
        tail = again


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
        return [tuple(each) for each in client.eval(DUMP, 0)]  # type: ignore[union-attr]


def restore_redis(url: str, copy: list[tuple[bytes, bytes, int]]) -> None:
    """Put the keys of a dump into an empty Redis."""
    with Redis.from_url(url) as client:
        for key, value, ttl in copy:
            client.restore(key, max(ttl, 0), value)


def remove(file: Path, *suffixes: str) -> None:
    """Files of an embedded store."""
    for suffix in suffixes:
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def cut_append_only(folder: Path, rng: Random) -> int:
    """Take some of the end of Redis' append-only file: at the border of a transaction, or anywhere.
    The bytes that are gone."""
    manifest = (folder / "appendonlydir" / "appendonly.aof.manifest").read_text().splitlines()
    newest = [line.split()[1] for line in manifest if line.endswith("type i")][-1]
    file = folder / "appendonlydir" / newest
    size = file.stat().st_size
    end = size - rng.randrange(1, min(CUT_BYTES, size))
    if rng.random() < 0.5:
        border = file.read_bytes().rfind(b"*1\r\n$5\r\nMULTI\r\n", 0, end)
        end = max(border, 0)
    with file.open("r+b") as opened:
        opened.truncate(end)
    return size - end


def cut_wal(file: Path, rng: Random) -> int:
    """Take some of the end of SQLite's write-ahead log, or all of it. The bytes that are gone."""
    wal = file.with_name(f"{file.name}-wal")
    file.with_name(f"{file.name}-shm").unlink(missing_ok=True)
    if not wal.exists():
        return 0
    size = wal.stat().st_size
    if rng.random() < 0.3 or size < 2:
        wal.unlink()
        return size
    end = max(size - rng.randrange(1, CUT_BYTES), 0)
    with wal.open("r+b") as opened:
        opened.truncate(end)
    return size - end
