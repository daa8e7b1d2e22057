"""Copies of experiments (`service.maintenance.copying`), from every store into every store."""

import itertools
from collections.abc import Callable
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, given, settings

from service.errors import StoreError
from service.log.reading import Progress
from service.log.stores import Store
from service.log.stores.base import (
    Activation,
    Append,
    Appended,
    Cut,
    DecisionRow,
    Erasure,
    Instant,
    KeptMark,
    Record,
    Removed,
    Snapshot,
)
from service.log.stores.memory import MemoryStore
from service.maintenance.copying import copy_experiment
from tests.support.redis_server import RedisServer
from tests.support.stores import (
    Backend,
    batches,
    decision,
    event,
    over_every_store,
    stores_at,
    view,
)

Targets = Callable[[], Backend]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Targets:
    """Makes a store that holds nothing."""
    if request.param == "memory":

        def memory() -> Backend:
            store = MemoryStore()
            return Backend(lambda: store)

        return memory
    if request.param == "sqlite":
        count = itertools.count()
        return lambda: stores_at(f"sqlite:///{tmp_path}/copy{next(count)}.db")
    server: RedisServer = request.getfixturevalue("redis")

    def redis() -> Backend:
        server.command("FLUSHALL")
        return stores_at(f"{server.url[:-1]}1")

    return redis


async def marks_of(store: Store, experiment: str) -> dict[str, KeptMark]:
    """In pages of two."""
    found, cursor = dict[str, KeptMark](), ""
    while True:
        page, cursor = await store.list_marks(experiment, cursor, 2)
        found |= {mark.identity: mark for mark in page}
        if not cursor:
            return found


async def everything(store: Store, experiment: str) -> dict[str, object]:
    """All of an experiment that a copy keeps; of rows their order."""
    instant = await store.describe(experiment, whole=True)
    keys = await store.blob_keys(experiment)
    marks = (await marks_of(store, experiment)).values()
    return {
        **await view(store, experiment),
        "counts": {},  # of rows that were ever kept: a copy counts its own
        "position": instant.position,
        "checksum": instant.checksum,
        "all due": {decision: due for decision, due in instant.due.items() if due is not None},
        "marks": sorted((m.identity, m.value, m.position, m.keep_until) for m in marks),
        "blobs": {key: await store.blob(experiment, key) for key in keys},
        "snapshots": await store.snapshots(experiment),
    }


async def copied(source: Store, target: Backend) -> dict[str, dict[str, object]]:
    """Copy each experiment. Return what the copy holds, which goes on where the source stands."""
    found = {}
    store = target.make()
    await store.open()
    try:
        for name in await source.experiments():
            await copy_experiment(source, store, name, Progress(None))
            found[name] = await everything(store, name)
            position = (await source.describe(name)).position
            assert await store.commit([event("more", experiment=name)]) == [
                Appended(position + 1, ANY, ANY)
            ]
    finally:
        await store.close()
    return found


async def fill(store: Store) -> None:
    """Two experiments, with everything that a store can hold."""
    await store.commit(
        [
            event("a", b"1", keep_until=4e9 + 0.25),
            decision("a", 1.0),
            decision("b", 2.5),
            event("b", b"2", settles="b"),
            event("c", b"3", settles="c"),
            DecisionRow("zoo", "d", "random", bytes(range(256))),
            Activation("zoo", "d", "d/activated", 3.0, keep_until=4e9),
            event("e", bytes(range(256)), experiment="shop"),
        ]
    )
    for position in (1, 2, 3):
        await store.save_snapshot("zoo", Snapshot(position, b"s%d" % position, position == 1))
    await store.put_blob("zoo", "net", bytes(range(256)))
    await store.overwrite_marks("zoo", {"a": "2.0", "gone": "1.0"}, 4e9)


def test_a_copy_holds_all_that_was_kept(backend: Backend, empty: Targets) -> None:
    target = empty()

    async def scenario(source: Store) -> None:
        await fill(source)
        told = {name: await everything(source, name) for name in ("shop", "zoo")}
        assert told["zoo"]["all due"] == {"a": 1.0, "d": 3.0}
        assert told["zoo"]["snapshots"] == [
            Snapshot(3, b"s3"),
            Snapshot(2, b"s2"),
            Snapshot(1, b"s1", origin=True),
        ]
        assert await copied(source, target) == told

    backend.run(scenario)


def test_what_was_trimmed_and_erased_stays_so_in_a_copy(backend: Backend, empty: Targets) -> None:
    """Of 6 events 3 are trimmed and the fourth is erased; of 4 rows the first and the last."""
    target = empty()

    async def scenario(source: Store) -> None:
        await source.commit([event(str(n), b"%d" % n) for n in range(1, 7)])
        await source.commit([decision(name) for name in "abcd"])
        await source.save_snapshot("zoo", Snapshot(4, b"s", origin=True))
        [first, *_] = await source.decisions("zoo", 0, 1)
        while await source.trim("zoo", Cut(3, first.number, 0.0), 2):
            pass
        await source.erase("zoo", Erasure(["d"], {4: b"gone"}, ["4"], 4))
        told = await everything(source, "zoo")
        assert told["events"] == [Record(4, b"gone"), Record(5, b"5"), Record(6, b"6")]
        assert told["rows"] == [("b", b"b"), ("c", b"c")]
        assert (await source.describe("zoo")).removed == Removed(1, 1)
        assert await copied(source, target) == {"zoo": told}

    backend.run(scenario)


def test_an_experiment_of_which_every_event_was_trimmed_goes_on(
    backend: Backend, empty: Targets
) -> None:
    target = empty()

    async def scenario(source: Store) -> None:
        await source.commit([event("a"), event("b")])
        await source.save_snapshot("zoo", Snapshot(2, b"s", origin=True))
        while await source.trim("zoo", Cut(2, 0, 0.0), 9):
            pass
        assert await source.read("zoo", 0, 9) == []
        assert (await copied(source, target))["zoo"]["position"] == 2

    backend.run(scenario)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_whatever_was_written_a_copy_answers_the_same(
    kind: str, tmp_path: Path, redis: RedisServer
) -> None:
    number = itertools.count()

    def fresh() -> Backend:
        if kind == "redis":
            redis.command("FLUSHALL")
            return stores_at(redis.url)
        if kind == "sqlite":
            return stores_at(f"sqlite:///{tmp_path}/{next(number)}.db")
        memory = MemoryStore()
        return Backend(lambda: memory)

    @given(batches)
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def same(written: list[list[Append | DecisionRow]]) -> None:
        async def scenario(store: Store) -> None:
            for batch in written:
                await store.commit(batch)
            target = MemoryStore()
            for name in await store.experiments():
                await copy_experiment(store, target, name, Progress(None))
                assert await everything(target, name) == await everything(store, name)
            assert await target.experiments() == await store.experiments()

        fresh().run(scenario)

    same()


@over_every_store
async def test_the_instant_of_an_experiment_that_is_not_there_is_empty(store: Store) -> None:
    assert await store.describe("zoo", whole=True) == Instant(
        0, 0, {}, {}, Removed(), checksum="0:"
    )
    assert await store.list_marks("zoo", "", 10) == ([], "")
    assert await store.blob_keys("zoo") == []


@over_every_store
async def test_a_store_has_one_secret_for_ever(store: Store) -> None:
    await store.adopt_secret(bytes(32))
    assert await store.secret() == bytes(32)
    with pytest.raises(StoreError, match="secret of its own"):
        await store.adopt_secret(bytes(32))
