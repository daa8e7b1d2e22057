"""Erasure: of a decision that was erased nothing is left in the folder of an archive."""

import re
from pathlib import Path
from random import Random

from service.log.stores.base import DecisionRow
from service.log.stores.memory import MemoryStore
from service.maintenance.archive.archiver import Sizes
from service.maintenance.archive.index import Change, Index, key_of
from service.state.events import Decision, encode_decision
from tests.support.clock import run_virtual
from tests.unit.archived import (
    LATER_S,
    MORNING,
    SHOP,
    Shop,
    a_decision,
    archive_at,
    export,
    ids_of,
    names_of,
)


def named(number: int, at: float = MORNING) -> Decision:
    """A decision whose context names a person."""
    return a_decision(number, at, context={"name": f"visitor-{number:08d}"})


def traces(path: Path, number: int) -> list[str]:
    """Files of the folder whose bytes hold something of a decision. Parquet pages are compressed:
    what pyarrow reads of them is looked through as well."""
    decision = named(number)
    needles = [decision.id, str(decision.unit), decision.context["name"]]
    found = []
    for file in sorted(path.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            if file.suffix == ".parquet":
                content += "".join(map(str, _rows(file))).encode()
            found += [file.name for needle in needles if needle.encode() in content][:1]
    return found


def _rows(file: Path) -> list[object]:
    import pyarrow.parquet as pq

    rows: list[object] = pq.read_table(file, partitioning=None).to_pylist()
    return rows


async def a_shop(decisions: int, rest: float = 0.0) -> Shop:
    shop = Shop(MemoryStore())
    await shop.define()
    for number in range(1, decisions + 1):
        decision = await shop.decide(named(number))
        await shop.reward(decision, a=number / 7)
    await shop.pass_until(MORNING + rest)
    return shop


def test_a_final_row_leaves_its_part_and_the_others_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop(6, LATER_S)
        await export(shop.store, tmp_path, Sizes(part_rows=100))
        names = names_of(tmp_path)
        assert traces(tmp_path, 2) == ["part-000000000001.parquet"]
        await shop.erase(named(2), named(4))
        await export(shop.store, tmp_path)
        assert names_of(tmp_path) == names
        assert ids_of(tmp_path) == [named(number).id for number in (1, 3, 5, 6)]
        assert traces(tmp_path, 2) == traces(tmp_path, 4) == []

    run_virtual(scenario())


def test_an_open_row_leaves_its_file_and_the_index(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop(6)
        await export(shop.store, tmp_path)
        assert traces(tmp_path, 2) == ["_archive.db", "open-000000000001.parquet"]
        await shop.erase(named(2))
        archive = archive_at(shop.store, tmp_path)
        await archive.advance()  # before the open files are written anew
        archive.close()
        assert ids_of(tmp_path) == [named(number).id for number in (1, 3, 4, 5, 6)]
        assert traces(tmp_path, 2) == []

    run_virtual(scenario())


def test_the_last_row_archived_is_no_longer_remembered(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop(2, LATER_S)
        await export(shop.store, tmp_path)
        assert traces(tmp_path, 2) == ["_archive.db", "part-000000000001.parquet"]
        await shop.erase(named(1), named(2))
        await shop.decide(named(3, MORNING + LATER_S))
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path) == [named(3).id]
        assert traces(tmp_path, 2) == traces(tmp_path, 1) == []
        assert names_of(tmp_path) == ["day=2026-01-01/open-000000000003.parquet"]

    run_virtual(scenario())


def test_what_was_erased_and_comes_again_stays_out(tmp_path: Path) -> None:
    """A service may say that it erases before it does, and a copy may bring a row back."""

    async def scenario() -> None:
        shop = await a_shop(3, LATER_S)
        await export(shop.store, tmp_path)
        await shop.erase(named(2))
        await export(shop.store, tmp_path)
        row = DecisionRow(SHOP, named(2).id, "lints", encode_decision(named(2)))
        await shop.store.commit([row])
        await shop.reward(named(2), a=1.0)
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path) == [named(1).id, named(3).id]
        assert traces(tmp_path, 2) == []

    run_virtual(scenario())


def test_what_is_erased_while_parts_are_written_is_not_in_them(tmp_path: Path) -> None:
    class Erasing(MemoryStore):
        """Erases two decisions as the archiver has the second page in its hands."""

        async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
            pages.append(now)
            if len(pages) == 2:
                await shop.erase(named(2), named(250))
            return await super().due(experiment, now, limit)

    async def scenario() -> None:
        shop.store = store
        await shop.define()
        for number in range(1, 301):  # two pages
            await shop.decide(named(number))
        await shop.pass_until(MORNING + LATER_S)
        await export(store, tmp_path)
        assert len(ids_of(tmp_path, final=True)) == 298
        assert traces(tmp_path, 2) == traces(tmp_path, 250) == []

    pages: list[float] = []
    store = Erasing()
    shop = Shop(store)
    run_virtual(scenario())
    assert len(pages) == 4


def test_what_is_erased_while_open_files_are_written_is_not_in_them(tmp_path: Path) -> None:
    class Erasing(MemoryStore):
        """Erases the second decision once the rows from the first on were read twice."""

        async def decisions(self, experiment: str, after: int, limit: int):  # type: ignore[no-untyped-def]
            rows = await super().decisions(experiment, after, limit)
            if after == 0 and limit > 1:
                reads.append(after)
                if len(reads) == 2:
                    await shop.erase(named(2))
            return rows

    async def scenario() -> None:
        await shop.define()
        for number in range(1, 4):
            await shop.decide(named(number))
        await export(store, tmp_path)
        assert ids_of(tmp_path, final=False) == [named(1).id, named(3).id]
        assert traces(tmp_path, 2) == []

    reads: list[int] = []
    store = Erasing()
    shop = Shop(store)
    run_virtual(scenario())
    assert len(reads) == 3


def test_an_index_of_many_pages_keeps_no_copy_of_what_moved(tmp_path: Path) -> None:
    """As rows go from the middle of pages, SQLite moves others and leaves copies of them behind:
    of these 2,000 it is a few, secure_delete or not, that are still in the file unless it is
    written anew."""
    path, rng = tmp_path / "_archive.db", Random(1)
    index = Index(path)
    changes = [
        (number, Change(f"decision-{number:06d}", MORNING, False, [(arm, 1.0, False)]))
        for number in range(1, 3_001)
        for arm in ["x" * rng.randrange(20, 900)]
    ]
    index._db.execute("PRAGMA synchronous = OFF")
    index.take(changes, index.cursor)
    gone = rng.sample(range(1, 3_001), 2_000)
    for start in range(0, len(gone), 100):
        index.archived(gone[start : start + 100], index.cursor, MORNING)
    names = {f"decision-{number:06d}" for number in gone}

    def found() -> set[str]:
        return {name.decode() for name in re.findall(rb"decision-\d{6}", path.read_bytes())}

    assert names & found()
    index.erase(sorted(names))
    assert not names & found()
    kept = {change.decision for _, change in changes} - names
    assert set(index.find(sorted(kept))) == kept
    index.close()
    assert [each.name for each in tmp_path.iterdir()] == ["_archive.db"]


def test_an_outcome_is_found_by_its_decision_where_two_ids_share_a_key(tmp_path: Path) -> None:
    index = Index(tmp_path / "_archive.db")
    index.take([(1, Change("one", MORNING, False, [("a", 1.0, False)]))], index.cursor)
    index._db.execute("UPDATE changes SET key = ?", (key_of("two"),))
    assert index.find(["two"]) == {}
    index.close()


def test_the_events_of_a_shop_say_that_it_erased() -> None:
    """What these tests stand on: tombstones stand where the events of the erased one stood."""

    async def scenario() -> None:
        shop = await a_shop(2)
        before = await shop.events()
        await shop.erase(named(1))
        after = await shop.events()
        assert [record.position for record in after] == [1, 2, 3, 4, 5]
        assert after[1].payload != before[1].payload
        assert [each.id for each in await shop.store.decisions(SHOP, 0, 9)] == [named(2).id]
        assert all(named(1).id.encode() not in each.payload for each in after[:4])

    run_virtual(scenario())
