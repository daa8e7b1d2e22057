"""Helpers of tests of stores: the life of one event loop, entries, a full view, faulty stores."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from hypothesis import strategies as st

from service.errors import StoreUnavailable
from service.log.stores import Store, open_store
from service.log.stores.base import Append, CommitResult, DecisionRow, Entry, KeptMark, Record
from service.log.stores.memory import MemoryStore
from service.log.stores.store import START
from tests.support.scenarios import Test, as_test

Scenario = Callable[[Store], Awaitable[None]]


@dataclass
class Backend:
    """make: a store that is not open; every one made shares what they hold."""

    make: Callable[[], Store]

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            store = self.make()
            await store.open()
            try:
                await scenario(store)
            finally:
                await store.close()

        asyncio.run(main())


def stores_at(url: str) -> Backend:
    return Backend(lambda: open_store(url))


def over_every_store(scenario: Callable[..., Awaitable[None]]) -> Test:
    """A test that opens a store, runs the scenario on it, and closes it."""
    return as_test(scenario, Backend.run, "backend")


def over_sqlite(scenario: Callable[..., Awaitable[None]]) -> Test:
    """A test of a store in the file that the fixture `path` names."""
    return as_test(scenario, lambda path, work: stores_at(f"sqlite:///{path}").run(work), "path")


def event(identity: str, payload: bytes = b"e", experiment: str = "zoo", **more: object) -> Append:
    return Append(experiment, payload, {identity: "1.0"}, **more)  # type: ignore[arg-type]


def decision(id: str, due: float | None = None, payload: bytes | None = None) -> DecisionRow:
    return DecisionRow("zoo", id, "linucb", payload or id.encode(), due)


async def expect_dense(store: Store, events: int) -> None:
    positions = [record.position for record in await store.read("zoo", 0, 10_000)]
    assert positions == list(range(1, events + 1))


names = st.sampled_from(["a", "b", "c", "d", "e"])
appends = st.builds(
    Append,
    experiment=st.sampled_from(["zoo", "shop"]),
    payload=st.binary(max_size=4),
    marks=st.dictionaries(names, st.sampled_from(["0", "1"]), min_size=1, max_size=3),
    settles=st.lists(names, max_size=2),
    keep_until=st.sampled_from([None, 4e9]),
)
rows = st.builds(
    DecisionRow,
    experiment=st.sampled_from(["zoo", "shop"]),
    id=names,
    series=st.sampled_from(["linucb", "random"]),
    payload=st.binary(max_size=4),
    due=st.none() | st.integers(0, 3).map(float),
)
batches = st.lists(st.lists(appends | rows, max_size=6), max_size=5)


def with_suffix(entry: Entry, suffix: str) -> Entry:
    return msgspec.structs.replace(entry, experiment=entry.experiment + suffix)


async def view(store: Store, experiment: str) -> dict[str, object]:
    """All that can be asked about an experiment."""
    return {
        "exists": experiment in await store.experiments(),
        "events": await store.read(experiment, 0, 100),
        "marks": await store.marks(experiment, "abcde"),
        "decisions": [await store.decision(experiment, name) for name in "abcde"],
        "rows": [(row.id, row.payload) for row in await store.decisions(experiment, 0, 100)],
        "due": [await store.due(experiment, float(now), 100) for now in range(4)],
        "counts": (await store.describe(experiment)).counts,
    }


class SharedStore(MemoryStore):
    """Several processes append to it, as to Redis."""

    shared = True


class Disk(MemoryStore):
    """A store that fails.

    full      commits fail
    gone      reads fail as well
    commits   that succeed before the disk is full
    """

    full = gone = False
    commits = 1_000_000

    def _expect(self, works: bool) -> None:
        if not works:
            raise StoreUnavailable("/secret/place: database or disk is full")

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.commits -= 1
        self._expect(not self.full and not self.gone and self.commits >= 0)
        return await super().commit(entries)

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        self._expect(not self.gone)
        return await super().read(experiment, after, limit)

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        self._expect(not self.gone)
        return await super().due(experiment, now, limit)


class SlowDisk(MemoryStore):
    """Commits wait until `free` is set; those that waited fail where `fails`."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.free, self.begun = asyncio.Event(), asyncio.Event()
        self.free.set()

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        stuck = not self.free.is_set()
        self.begun.set()
        await self.free.wait()
        if stuck and self.fails:
            raise StoreUnavailable("no reply")
        return await super().commit(entries)


async def marks_of(store: Store, experiment: str, page: int = 1_000) -> dict[str, KeptMark]:
    """All marks, by identity; read in pages of this many."""
    found, cursor = dict[str, KeptMark](), START
    while True:
        marks, cursor = await store.list_marks(experiment, cursor, page)
        found |= {mark.identity: mark for mark in marks}
        if not cursor:
            return found
