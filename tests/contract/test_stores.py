"""The guarantees of every store (`service.log.stores.store`); the files beside this test what one
store alone can show: locks, full disks, a killed server."""

import asyncio
from unittest.mock import ANY

import pytest

from service.log.stores import Store
from service.log.stores.base import (
    Append,
    Appended,
    Blob,
    LogSummary,
    Mark,
    MarkConflict,
    Record,
    Removed,
    Snapshot,
    Trim,
    digest,
)
from tests.support.stores import (
    Backend,
    decision,
    event,
    expect_dense,
    over_every_store,
)


@over_every_store
async def test_an_event_comes_with_the_digest_of_the_one_before(store: Store) -> None:
    """Whatever their bytes, over commits and repeats, and of each experiment by itself."""
    payloads = [b"{}", b"\x00\xff%d:", "été".encode(), b"e" * 5_000]
    entries, found = [event(str(n), payload) for n, payload in enumerate(payloads)], list[object]()
    for batch in (entries[:1], entries[:3], [event("b", b"other", "shop"), *entries[2:]]):
        found += [each for each in await store.commit(batch) if isinstance(each, Appended)]
    digests = ["", *map(digest, payloads)]
    expected = [Appended(position, digests[position - 1]) for position in range(1, 5)]
    assert found == [*expected[:3], Appended(1, ""), expected[3]]
    assert (await store.describe("zoo")).digest == digests[-1]
    assert (await store.describe("none")).digest == ""


@over_every_store
async def test_positions_count_from_one_in_each_experiment(store: Store) -> None:
    first = await store.commit([event("a"), event("b", experiment="shop"), event("b")])
    assert first == [Appended(1, ANY), Appended(1, ANY), Appended(2, ANY)]
    assert await store.commit([event("c")]) == [Appended(3, ANY)]
    assert await store.experiments() == ["shop", "zoo"]


@over_every_store
async def test_an_empty_log_holds_nothing(store: Store) -> None:
    assert await store.commit([]) == []
    assert await store.experiments() == []
    assert await store.read("zoo", 0, 10) == []
    assert await store.marks("zoo", ["a"]) == {}
    assert await store.marks("zoo", []) == {}
    assert await store.decision("zoo", "d") is None
    assert await store.decisions("zoo", 0, 10) == []
    assert await store.due("zoo", 1e12, 10) == []
    assert await store.describe("zoo", whole=True) == LogSummary(0, 0, {}, {}, Removed())
    assert await store.list_marks("zoo", "", 10) == ([], "")
    assert await store.snapshots("zoo") == []
    assert await store.blob("zoo", "k") is None
    assert await store.blob_keys("zoo") == []


@over_every_store
async def test_events_come_back_in_order_and_in_pages(store: Store) -> None:
    await store.commit([event(str(n), payload=b"%d" % n) for n in range(1, 8)])
    assert await store.read("zoo", 0, 3) == [Record(n, b"%d" % n) for n in (1, 2, 3)]
    assert await store.read("zoo", 3, 3) == [Record(n, b"%d" % n) for n in (4, 5, 6)]
    assert await store.read("zoo", 6, 3) == [Record(7, b"7")]
    assert await store.read("zoo", 7, 3) == []
    assert await store.read("other", 0, 3) == []


@over_every_store
async def test_a_payload_comes_back_as_it_went_in(store: Store) -> None:
    every_byte = bytes(range(256)) * 40
    await store.commit([event("a", every_byte), event("b", b""), decision("d", 1.0, every_byte)])
    assert [record.payload for record in await store.read("zoo", 0, 2)] == [every_byte, b""]
    assert await store.decision("zoo", "d") == every_byte
    assert await store.due("zoo", 1.0, 1) == [every_byte]


@over_every_store
async def test_a_new_mark_is_set_once(store: Store) -> None:
    """In a batch the first wins; a later conflict is answered with what the identity stands for."""
    outcomes = await store.commit(
        [
            Append("zoo", b"1", {"a": "1.0"}),
            Append("zoo", b"2", {"a": "0.0"}),
            Append("zoo", b"3", {"b": "1.0"}),
        ]
    )
    assert outcomes == [Appended(1, ANY), MarkConflict({"a": Mark("1.0", 1)}), Appended(2, ANY)]
    assert await store.commit([Append("zoo", b"4", {"b": "7"})]) == [
        MarkConflict({"b": Mark("1.0", 2)})
    ]
    assert [record.payload for record in await store.read("zoo", 0, 9)] == [b"1", b"3"]
    assert await store.commit([event("a", experiment="shop")]) == [Appended(1, ANY)]


@over_every_store
async def test_an_event_takes_all_its_identities_or_none(store: Store) -> None:
    slate = Append("zoo", b"slate", {"d/a": "1", "d/b": "0", "d/c": "0"})
    assert await store.commit([event("d/b"), slate]) == [
        Appended(1, ANY),
        MarkConflict({"d/b": Mark("1.0", 1)}),
    ]
    assert await store.marks("zoo", ["d/a", "d/b", "d/c"]) == {"d/b": Mark("1.0", 1)}
    rest = Append("zoo", b"rest", {"d/a": "1", "d/c": "0"})
    assert await store.commit([rest, slate]) == [
        Appended(2, ANY),
        MarkConflict({"d/a": Mark("1", 2), "d/b": Mark("1.0", 1), "d/c": Mark("0", 2)}),
    ]


@over_every_store
async def test_a_mark_is_replaced_where_it_has_the_expected_value(store: Store) -> None:
    """In a batch as well, and a mark that is not there has no value."""
    outcomes = await store.commit(
        [
            Append("zoo", b"1", {"a": "1"}, {"a": ""}),
            Append("zoo", b"2", {"a": "1"}),
            Append("zoo", b"3", {"a": "2", "b": ""}, {"a": "1"}),
            Append("zoo", b"4", {"a": "3", "b": "4"}, {"a": "2"}),
            Append("zoo", b"5", {"a": "3"}, {"a": "1"}),
            Append("zoo", b"6", {"b": "5"}, {"b": ""}),
        ]
    )
    a, b = Mark("2", 2), Mark("", 2)
    assert outcomes == [
        MarkConflict({}),
        Appended(1, ANY),
        Appended(2, ANY),
        MarkConflict({"a": a, "b": b}),
        MarkConflict({"a": a}),
        Appended(3, ANY),
    ]
    assert await store.marks("zoo", ["a", "b"]) == {"a": a, "b": Mark("5", 3)}


def test_writers_that_replace_one_mark_follow_each_other(backend: Backend) -> None:
    """Each event names the value before it; two writers that race lose none of them, and where
    several processes may append each has a store of its own."""

    async def write(store: Store, name: str) -> None:
        known: Mark | None = None
        for number in range(50):
            value, appended = f"{name}{number}", False
            while not appended:
                before = {} if known is None else {"a": known.value}
                payload = f"{before.get('a', '')}>{value}".encode()
                [result] = await store.commit([Append("zoo", payload, {"a": value}, before)])
                appended = isinstance(result, Appended)
                if isinstance(result, MarkConflict):
                    known = result.marks["a"]
            known = Mark(value, 0)

    async def race(store: Store) -> None:
        other = store
        if store.shared:
            other = backend.make()
            await other.open()
        await asyncio.gather(write(store, "x"), write(other, "y"))
        if other is not store:
            await other.close()
        steps = [record.payload.decode().split(">") for record in await store.read("zoo", 0, 1_000)]
        assert len(steps) == 100
        assert [before for before, _ in steps] == ["", *(after for _, after in steps[:-1])]

    backend.run(race)


@over_every_store
async def test_identities_and_values_are_any_text(store: Store) -> None:
    marks = {"d:4 :x": "1.0 and more", "ключ/狗": "", "{braces}%\n": "ä", "nul\0": "1\0 2"}
    marks |= {"i" * n: "v" * n for n in (31, 32, 255, 256, 70_000)}
    stood_for = {identity: Mark(value, 1) for identity, value in marks.items()}
    assert await store.commit([Append("zoo", b"e", marks)]) == [Appended(1, ANY)]
    assert await store.marks("zoo", list(marks)) == stood_for
    assert await store.commit([Append("zoo", b"e", marks)]) == [MarkConflict(stood_for)]
    assert await store.marks("zoo", ["nul", "d:4"]) == {}


@over_every_store
async def test_a_batch_may_be_large(store: Store) -> None:
    rows = [decision("d" * 200 + str(n), 1.0) for n in range(3_000)]
    outcomes = await store.commit([*rows, *(event("e" * 200 + str(n)) for n in range(3_000))])
    assert outcomes[3_000:] == [Appended(n, ANY) for n in range(1, 3_001)]
    assert len(await store.due("zoo", 1.0, 10_000)) == 3_000


@over_every_store
async def test_the_last_two_snapshots_are_kept(store: Store) -> None:
    """By number (9 < 10), and the same position takes the new payload: a damaged one is mended."""
    for snapshot in (Snapshot(9, b"nine"), Snapshot(10, b"bad"), Snapshot(10, b"good")):
        await store.put("zoo", snapshot)
    assert await store.snapshots("zoo") == [Snapshot(10, b"good"), Snapshot(9, b"nine")]
    for position in (30, 20, 5):
        await store.put("zoo", Snapshot(position, b"%d" % position))
    assert await store.snapshots("zoo") == [Snapshot(30, b"30"), Snapshot(20, b"20")]
    await store.put("zoo", Snapshot(40, b"\0" * 3_000_000))
    assert [kept.position for kept in await store.snapshots("zoo")] == [40, 30]
    assert await store.snapshots("shop") == []


@over_every_store
async def test_a_blob_never_changes(store: Store) -> None:
    await store.put("zoo", Blob("k", b"\0first"))
    await store.put("zoo", Blob("k", b"second"))
    assert await store.blob("zoo", "k") == b"\0first"
    assert await store.blob("shop", "k") is None


def test_a_reopened_store_holds_all_it_held(backend: Backend) -> None:
    secrets = []

    async def write(store: Store) -> None:
        secrets.append(await store.secret())
        await store.commit([event("a", b"1"), decision("d", 5.0), decision("e", 6.0)])
        await store.commit([event("b", b"2", settles=["e"]), event("c", settles=["late"])])
        await store.put("zoo", Snapshot(2, b"s"))
        await store.put("zoo", Blob("k", b"blob"))

    async def read(store: Store) -> None:
        assert await store.experiments() == ["zoo"]
        assert await store.read("zoo", 0, 2) == [Record(1, b"1"), Record(2, b"2")]
        assert await store.commit([event("a"), event("new")]) == [
            MarkConflict({"a": Mark("1.0", 1)}),
            Appended(4, ANY),
        ]
        await store.commit([decision("d", 1.0), decision("late", 1.0)])
        assert await store.due("zoo", 9.0, 9) == [b"d"]
        assert (await store.describe("zoo")).counts == {"linucb": 3}
        assert await store.snapshots("zoo") == [Snapshot(2, b"s")]
        assert await store.blob("zoo", "k") == b"blob"
        secrets.append(await store.secret())
        secrets.append(await store.secret())

    backend.run(write)
    backend.run(read)
    assert len(secrets[0]) == 32
    assert secrets.count(secrets[0]) == 3


@over_every_store
async def test_many_writers_share_one_dense_log(store: Store) -> None:
    """50 tasks, 6 commits of 3, half of the identities wanted by two tasks: 600 events."""

    async def write(task: int) -> None:
        for commit in range(6):
            await store.commit(
                [
                    event(f"own {task} {commit}"),
                    decision(f"{task} {commit}", 1.0),
                    event(f"shared {task // 2} {commit}"),
                ]
            )

    await asyncio.gather(*(write(task) for task in range(50)))
    await expect_dense(store, 300 + 150)
    assert (await store.describe("zoo")).counts == {"linucb": 300}


@over_every_store
async def test_a_cancelled_commit_disturbs_no_other(store: Store) -> None:
    for n in range(20):
        task = asyncio.create_task(store.commit([event(f"cancelled {n}")]))
        await asyncio.sleep(0.0002 * n)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (outcome,) = await store.commit([event(f"kept {n}")])
        assert await store.marks("zoo", [f"kept {n}"]) == {
            f"kept {n}": Mark("1.0", outcome.position)  # type: ignore[union-attr]
        }


@over_every_store
async def test_wait_returns_when_a_log_moves_or_has_gone_on(store: Store) -> None:
    await store.commit([event("a"), event("b", experiment="shop")])
    await asyncio.wait_for(store.wait({"zoo": 0}, seconds=3_600), 60)
    waiting = asyncio.create_task(store.wait({"zoo": 1, "shop": 1}, seconds=3_600))
    await store.commit([event("c", experiment="shop")])
    await asyncio.wait_for(waiting, 60)


@pytest.mark.process
@over_every_store
async def test_wait_returns_in_time_where_nothing_comes(store: Store) -> None:
    await store.commit([event("a")])
    start = asyncio.get_running_loop().time()
    await store.wait({"zoo": 1}, seconds=0.2)
    await store.wait({}, seconds=0.1)
    assert asyncio.get_running_loop().time() - start > 0.29


@over_every_store
async def test_the_size_of_a_log_is_that_of_its_rows_and_events(store: Store) -> None:
    """Of two experiments, whose payloads are 12 to 1, and 2 to 1 once rows are trimmed. A file or a
    table does not shrink, its use does."""
    large = [decision(f"d{n}", payload=b"%1000d" % n) for n in range(600)]
    small = [event(f"s{n}", b"%500d" % n, "shop") for n in range(100)]
    await store.commit([event("z"), *large, *small])
    size = await store.measure()
    assert size.logs.keys() == {"zoo", "shop"}
    assert size.logs["zoo"] > 600_000
    assert 50_000 <= size.logs["shop"] < size.logs["zoo"] / 4
    assert size.used >= sum(size.logs.values())
    assert size.limit is None or size.limit > size.used
    assert (await store.describe("zoo")).rows == 600
    await store.put("zoo", Snapshot(1, b"folded", origin=True))
    while await store.trim("zoo", Trim(0, 500, 0.0), 200):
        pass
    assert (await store.describe("zoo")).rows == 100
    later = (await store.measure()).logs
    assert later["zoo"] < 4 * later["shop"]


@over_every_store
async def test_an_empty_store_has_no_log(store: Store) -> None:
    assert (await store.measure()).logs == {}


def test_a_store_implements_fourteen_verbs() -> None:
    """The next store must be an afternoon's file."""
    assert len(Store.__abstractmethods__) <= 14
