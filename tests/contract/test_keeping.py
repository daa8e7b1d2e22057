"""Housekeeping, over every store: presence, needs, trimming, erasure."""

import asyncio
from unittest.mock import ANY

import pytest

from service.errors import ConfigurationError, StoreError
from service.log.stores import Store
from service.log.stores.base import (
    Append,
    Appended,
    Blob,
    Erasure,
    Mark,
    MarkConflict,
    Published,
    ReaderPosition,
    Record,
    Removed,
    Snapshot,
    Trim,
)
from service.log.stores.sqlite import SqliteStore
from tests.support.stores import decision, event, over_every_store
from tests.support.two_processes import TwoProcesses


async def fill(store: Store, events: int, rows: int = 0) -> None:
    await store.commit([event(f"mark{n}", b"e%d" % n) for n in range(1, events + 1)])
    await store.commit([decision(f"row{n}") for n in range(1, rows + 1)])


async def positions(store: Store, after: int = 0, limit: int = 100) -> list[int]:
    return [record.position for record in await store.read("zoo", after, limit)]


async def ids(store: Store) -> list[str]:
    return [row.id for row in await store.decisions("zoo", 0, 100)]


async def number_of(store: Store, row: str) -> int:
    return next(kept.number for kept in await store.decisions("zoo", 0, 100) if kept.id == row)


def origin(position: int) -> Snapshot:
    return Snapshot(position, b"state at %d" % position, origin=True)


# -- presence --------------------------------------------------------------------------------------


@over_every_store
async def test_processes_see_each_other_until_their_time_is_over_or_they_leave(
    store: Store,
) -> None:
    """Where they share a store: the lock of SQLite lets workers in alone."""
    assert await store.present("a", "serving", 60.0) == {"a": "serving"}
    alone = isinstance(store, SqliteStore)
    both = {"b": "two"} if alone else {"a": "serving", "b": "two"}
    assert await store.present("b", "two", 60.0) == both
    await store.present("b", "", 0.0)
    assert await store.present("a", "training", 0.2) == {"a": "training"}
    async with asyncio.timeout(60):
        while "a" in await store.present("b", "", 0.0):  # noqa: ASYNC110 - a store tells nobody
            await asyncio.sleep(0.01)
    assert await store.present("c", "", 0.0) == {}


# -- what deciders decide by -----------------------------------------------------------------------


@over_every_store
async def test_a_publication_takes_the_place_of_the_last_one_part_by_part(store: Store) -> None:
    """And is no part of a log. SQLite takes none, and says so."""
    if isinstance(store, SqliteStore | TwoProcesses):
        with pytest.raises(ConfigurationError, match="FORAGE_ROLE"):
            await store.stamps()
        with pytest.raises(StoreError):
            await store.put("zoo", Published("1", {}))
        return
    assert await store.stamps() == {}
    await store.put("zoo", Published("1", {"image": b"i", "heads": b"\x00h"}))
    await store.put("shop", Published("a", {"image": b"other"}))
    assert await store.stamps() == {"zoo": "1", "shop": "a"}
    await store.put("zoo", Published("2", {"heads": b"h"}))
    await store.put("zoo", Published("3"))
    assert await store.stamps() == {"zoo": "3", "shop": "a"}
    wanted = ["image", "heads", "moved"]
    assert await store.get("zoo", "published", wanted) == {"image": b"i", "heads": b"h"}
    assert await store.get("shop", "published", ["image"]) == {"image": b"other"}
    assert await store.experiments() == []


# -- needs -----------------------------------------------------------------------------------------


@over_every_store
async def test_what_a_reader_has_taken_is_remembered_until_it_goes(store: Store) -> None:
    await store.save_reader("zoo", "archive", ReaderPosition(3, 5))
    await store.save_reader("zoo", "archive", ReaderPosition(4, 6))
    await store.save_reader("zoo", "other", ReaderPosition(0, 0))
    assert (await store.describe("zoo")).readers == {
        "archive": ReaderPosition(4, 6),
        "other": ReaderPosition(0, 0),
    }
    await store.save_reader("zoo", "other", None)
    assert (await store.describe("zoo")).readers == {"archive": ReaderPosition(4, 6)}
    assert (await store.describe("shop")).readers == {}


# -- snapshots -------------------------------------------------------------------------------------


@over_every_store
async def test_the_newest_origin_is_kept_beside_the_last_two_snapshots(store: Store) -> None:
    await store.put("zoo", origin(5))
    for position in (10, 20, 30):
        await store.put("zoo", Snapshot(position, b"%d" % position))
    assert await store.snapshots("zoo") == [Snapshot(30, b"30"), Snapshot(20, b"20"), origin(5)]
    await store.put("zoo", origin(40))
    for late in (origin(25), Snapshot(35, b"35")):  # of a process that is behind
        await store.put("zoo", late)
    assert await store.snapshots("zoo") == [origin(40), Snapshot(30, b"30")]


# -- trimming --------------------------------------------------------------------------------------


@over_every_store
async def test_events_are_trimmed_up_to_the_origin_and_positions_go_on(store: Store) -> None:
    await fill(store, 10)
    with pytest.raises(StoreError, match="origin of replay is at position 0"):
        await store.trim("zoo", Trim(1, 0, 0.0), 100)
    await store.put("zoo", origin(6))
    with pytest.raises(StoreError, match="origin of replay is at position 6"):
        await store.trim("zoo", Trim(7, 0, 0.0), 100)
    assert await store.trim("zoo", Trim(6, 0, 0.0), 100) == 6
    assert await store.trim("zoo", Trim(6, 0, 0.0), 100) == 0
    assert await positions(store) == [7, 8, 9, 10]
    assert await positions(store, after=3) == [7, 8, 9, 10]
    assert await store.commit([event("mark11")]) == [Appended(11, ANY)]
    assert isinstance((await store.commit([event("mark1")]))[0], MarkConflict)
    await store.put("zoo", origin(11))
    await store.trim("zoo", Trim(11, 0, 0.0), 100)  # to its end
    assert await positions(store) == []
    assert await store.experiments() == ["zoo"]
    assert await store.commit([event("next")]) == [Appended(12, ANY)]
    assert await positions(store, after=11) == [12]


@over_every_store
async def test_trimming_goes_in_steps(store: Store) -> None:
    await fill(store, 10, rows=10)
    await store.put("zoo", origin(10))
    cut = Trim(8, await number_of(store, "row8"), 0.0)
    steps = 0
    while count := await store.trim("zoo", cut, 3):
        assert 0 < count <= 3 * 3
        steps += 1
    assert steps == 3
    assert (await positions(store), await ids(store)) == ([9, 10], ["row9", "row10"])


@over_every_store
async def test_a_row_that_is_due_and_those_after_it_are_not_trimmed(store: Store) -> None:
    await store.commit([decision("a"), decision("b", due=9.0), decision("c")])
    cut = Trim(0, await number_of(store, "c"), 0.0)
    await store.trim("zoo", cut, 100)
    assert await ids(store) == ["b", "c"]
    assert (await store.describe("zoo")).removed == Removed(trimmed=1)
    assert len(await store.due("zoo", 10.0, 10)) == 1
    await store.commit([event("settled", settles=["b"])])
    await store.trim("zoo", cut, 100)
    assert await ids(store) == []
    assert await store.decision("zoo", "b") is None
    assert (await store.describe("zoo")).removed == Removed(trimmed=3)
    assert (await store.describe("zoo")).counts == {"linucb": 3}


@over_every_store
async def test_rows_are_trimmed_where_no_default_can_come_any_more(store: Store) -> None:
    """Neither by a definition without defaults, nor of rows that were settled before they came."""
    await store.commit([decision("a", due=9.0), decision("b")])
    await store.trim("zoo", Trim(0, await number_of(store, "b"), 0.0, settles=False), 100)
    assert await ids(store) == []
    await store.commit([decision("a"), event("early", settles=["c"])])
    assert await store.due("zoo", 10.0, 10) == []
    await store.commit([decision("c", due=9.0)])
    await store.trim("zoo", Trim(0, await number_of(store, "c"), 0.0), 100)
    assert await ids(store) == []
    await store.commit([decision("c", due=9.0)])  # under its id comes another, which is due
    assert len(await store.due("zoo", 10.0, 10)) == 1


@over_every_store
async def test_marks_are_forgotten_once_they_need_not_be_kept(store: Store) -> None:
    await store.commit(
        [event("old", keep_until=50.0), event("new", keep_until=4e9), event("always")]
    )
    await store.trim("zoo", Trim(0, 0, 60.0), 100)
    assert set(await store.marks("zoo", ["old", "new", "always"])) == {"new", "always"}


@over_every_store
async def test_each_mark_is_kept_until_its_own_time(store: Store) -> None:
    """Also where marks of one decision, or of one event, have others beside them."""
    marks = {f"decision{n % 40}#{n}": 100.0 + n for n in range(400)}
    for identity, keep_until in marks.items():
        await store.commit([event(identity, keep_until=keep_until)])
    await store.overwrite_marks("zoo", {"decision7#7": "null"}, 1_000.0)
    count = 0
    while went := await store.trim("zoo", Trim(0, 0, 300.0), 50):
        count += went
    assert count == 199
    later = {identity for identity, keep_until in marks.items() if keep_until >= 300}
    assert set(await store.marks("zoo", [*marks])) == later | {"decision7#7"}


# -- erasure ---------------------------------------------------------------------------------------


@over_every_store
async def test_an_erased_decision_is_gone_and_its_events_are_tombstones(store: Store) -> None:
    await fill(store, 6)
    await store.commit([decision("a", due=5.0), decision("b", due=5.0), decision("c")])
    await store.put("zoo", Snapshot(4, b"older"))
    await store.put("zoo", origin(6))
    await store.put("zoo", Blob("weights", b"w"))
    await store.put("zoo", Blob("others", b"o"))
    gone = Erasure(["a", "unknown"], {2: b"stone", 5: b"stone"}, ["mark2", "a="], 6)
    await store.erase("zoo", gone)
    await store.erase("zoo", gone)  # again: nothing more
    await store.erase("zoo", Erasure(blobs=["weights", "unknown"]))
    await store.scrub()
    payloads = [b"e1", b"stone", b"e3", b"e4", b"stone", b"e6"]
    assert await store.read("zoo", 0, 100) == [
        Record(position, payload) for position, payload in enumerate(payloads, 1)
    ]
    assert await ids(store) == ["b", "c"]
    assert await store.decision("zoo", "a") is None
    assert len(await store.due("zoo", 10.0, 10)) == 1
    assert (await store.describe("zoo")).removed == Removed(erased=1)
    assert set(await store.marks("zoo", ["mark1", "mark2"])) == {"mark1"}
    assert await store.snapshots("zoo") == [origin(6)]
    assert await store.blob("zoo", "weights") is None
    assert await store.blob("zoo", "others") == b"o"


@over_every_store
async def test_pages_of_a_log_with_tombstones_are_dense(store: Store) -> None:
    await fill(store, 10)
    await store.put("zoo", origin(10))
    await store.erase("zoo", Erasure(events=dict.fromkeys((1, 2, 3, 6, 7, 9), b"stone"), origin=10))
    for limit in range(1, 12):
        after, seen = 0, []
        while page := await positions(store, after, limit):
            assert len(page) <= limit
            seen += page
            after = page[-1]
        assert seen == list(range(1, 11)), limit
    await store.trim("zoo", Trim(6, 0, 0.0), 100)  # tombstones, too
    assert await positions(store) == [7, 8, 9, 10]


@over_every_store
async def test_nothing_is_erased_above_the_origin(store: Store) -> None:
    await fill(store, 3, rows=1)
    with pytest.raises(StoreError, match="origin of replay is at position 0"):
        await store.erase("zoo", Erasure(["row1"], {2: b"stone"}, origin=3))
    assert await ids(store) == ["row1"]
    assert [record.payload for record in await store.read("zoo", 0, 9)] == [b"e1", b"e2", b"e3"]


@over_every_store
async def test_a_heavy_erasure_is_whole(store: Store) -> None:
    await fill(store, 1_201, rows=1_200)
    await store.put("zoo", origin(1_201))
    rows = [f"row{n}" for n in range(1, 1_201)]
    await store.erase("zoo", Erasure(rows, dict.fromkeys(range(1, 1201), b""), origin=1_201))
    assert await ids(store) == []
    assert (await store.describe("zoo")).removed == Removed(erased=1_200)
    assert {record.payload for record in await store.read("zoo", 0, 1_200)} == {b""}


@over_every_store
async def test_marks_can_be_made_to_stand_for_something_else(store: Store) -> None:
    await store.commit([event("known", keep_until=4e9)])
    await store.overwrite_marks("zoo", {"known": "gone", "new": "gone"}, 4e9)
    found = await store.marks("zoo", ["known", "new"])
    assert found == dict.fromkeys(("known", "new"), Mark("gone", 0))
    outcome = (await store.commit([Append("zoo", b"late", {"new": "1", "other": "2"})]))[0]
    assert isinstance(outcome, MarkConflict)
