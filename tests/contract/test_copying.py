"""Copies of experiments (`service.offline.copying`), from every store into every store."""

import itertools
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, given, settings

from service.errors import StoreError
from service.log.reading import Progress
from service.log.stores import Store
from service.log.stores.base import (
    Append,
    Appended,
    Blob,
    CommitResult,
    DecisionRow,
    Entry,
    Erasure,
    Record,
    Removed,
    RowStored,
    Snapshot,
    Trim,
)
from service.log.stores.memory import MemoryStore
from service.offline.copying import copy_experiment
from tests.support.properties import examples
from tests.support.stores import (
    Backend,
    batches,
    decision,
    event,
    marks_of,
    over_every_store,
    view,
    with_suffix,
)


async def everything(store: Store, experiment: str) -> dict[str, object]:
    """All of an experiment that a copy keeps; of rows their order."""
    instant = await store.describe(experiment, whole=True)
    keys = await store.blob_keys(experiment)
    marks = (await marks_of(store, experiment, page=2)).values()
    return {
        **await view(store, experiment),
        "counts": {},  # of rows that were ever kept: a copy counts its own
        "position": instant.position,
        "digest": instant.digest,
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
                Appended(position + 1, ANY)
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
            event("b", b"2", settles=["b"]),
            event("c", b"3", settles=["c"]),
            DecisionRow("zoo", "d", "random", bytes(range(256))),
            Append("zoo", b"4", {"d/activated": ""}, opens=("d", 3.0), keep_until=4e9),
            event("e", bytes(range(256)), experiment="shop"),
        ]
    )
    for position in (1, 2, 3):
        await store.put("zoo", Snapshot(position, b"s%d" % position, position == 1))
    await store.put("zoo", Blob("net", bytes(range(256))))
    await store.overwrite_marks("zoo", {"a": "2.0", "gone": "1.0"}, 4e9)


@over_every_store
async def test_a_copy_holds_all_that_was_kept(source: Store, target: Backend) -> None:
    await fill(source)
    told = {name: await everything(source, name) for name in ("shop", "zoo")}
    assert told["zoo"]["all due"] == {"a": 1.0, "d": 3.0}
    assert told["zoo"]["snapshots"] == [
        Snapshot(3, b"s3"),
        Snapshot(2, b"s2"),
        Snapshot(1, b"s1", origin=True),
    ]
    assert await copied(source, target) == told


@over_every_store
async def test_what_was_trimmed_and_erased_stays_so_in_a_copy(
    source: Store, target: Backend
) -> None:
    """Of 6 events 3 are trimmed and the fourth is erased; of 4 rows the first and the last. All
    events of the other experiment are trimmed, and it goes on after them."""
    await source.commit([event(str(n), b"%d" % n) for n in range(1, 7)])
    await source.commit([decision(name) for name in "abcd"])
    await source.put("zoo", Snapshot(4, b"s", origin=True))
    [first, *_] = await source.decisions("zoo", 0, 1)
    while await source.trim("zoo", Trim(3, first.number, 0.0), 2):
        pass
    await source.erase("zoo", Erasure(["d"], {4: b"gone"}, ["4"], 4))
    told = await everything(source, "zoo")
    assert told["events"] == [Record(4, b"gone"), Record(5, b"5"), Record(6, b"6")]
    assert told["rows"] == [("b", b"b"), ("c", b"c")]
    assert (await source.describe("zoo")).removed == Removed(1, 1)
    await source.commit([event("a", experiment="shop"), event("b", experiment="shop")])
    await source.put("shop", Snapshot(2, b"s", origin=True))
    while await source.trim("shop", Trim(2, 0, 0.0), 9):
        pass
    assert await source.read("shop", 0, 9) == []
    emptied = await everything(source, "shop")
    assert emptied["position"] == 2
    assert await copied(source, target) == {"shop": emptied, "zoo": told}


fresh = itertools.count()


def unnumbered(results: list[CommitResult]) -> list[CommitResult]:
    """Numbers of rows grow as each store likes."""
    return [
        RowStored(min(one.number, 1), one.earlier) if isinstance(one, RowStored) else one
        for one in results
    ]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batches=batches)
def test_every_store_does_what_the_memory_store_does_and_so_do_copies(
    backend: Backend, batches: list[list[Entry]]
) -> None:
    """Experiments of an example have names of their own, so that examples can share a store."""
    suffix = f"-{next(fresh)}"

    async def compare(store: Store) -> None:
        reference, copy = MemoryStore(), MemoryStore()
        for batch in batches:
            renamed = [with_suffix(entry, suffix) for entry in batch]
            results = await store.commit(renamed), await reference.commit(renamed)
            assert unnumbered(results[0]) == unnumbered(results[1])
        for name in ("zoo" + suffix, "shop" + suffix):
            expected = await everything(reference, name)
            assert await everything(store, name) == expected
            if expected["exists"]:
                await copy_experiment(store, copy, name, Progress(None))
                assert await everything(copy, name) == expected

    backend.run(compare)


@over_every_store
async def test_a_store_has_one_secret_for_ever(store: Store) -> None:
    await store.adopt_secret(bytes(32))
    assert await store.secret() == bytes(32)
    with pytest.raises(StoreError, match="secret of its own"):
        await store.adopt_secret(bytes(32))
