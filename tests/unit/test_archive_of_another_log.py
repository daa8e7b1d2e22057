"""An archive and a log that is not, or no longer, the one that was archived."""

from pathlib import Path

import pytest

from service.errors import ConfigurationError, Damaged, LogGap, UnknownSchema
from service.log.stores.base import Cut, Snapshot
from service.log.stores.memory import MemoryStore
from service.maintenance.archive.archiver import MARGIN_S
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
    rows_of,
)


async def a_shop() -> Shop:
    shop = Shop(MemoryStore())
    await shop.define()
    return shop


async def trimmed(shop: Shop, position: int, row: int) -> None:
    events = await shop.events()
    await shop.store.save_snapshot(SHOP, Snapshot(events[-1].position, b"", origin=True))
    while await shop.store.trim(SHOP, Cut(position, row, 0.0), 1_000):
        pass


def test_a_log_that_was_trimmed_beyond_the_cursor_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        await export(shop.store, tmp_path)
        for number in range(1, 4):
            await shop.reward(await shop.decide(a_decision(number)), a=1.0)
        await trimmed(shop, 2, 1)
        said = "goes on at position 3, and is archived up to 1: what lay between was trimmed"
        with pytest.raises(LogGap, match=said):
            await export(shop.store, tmp_path)

    run_virtual(scenario())


def test_what_was_taken_may_be_trimmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        for number in range(1, 4):
            await shop.reward(await shop.decide(a_decision(number)), a=1.0)
        await shop.pass_until(MORNING + LATER_S)
        await export(shop.store, tmp_path)
        await trimmed(shop, 5, 3)
        assert await shop.events() == []
        await export(shop.store, tmp_path)
        last = await shop.decide(a_decision(4, MORNING + LATER_S))
        await shop.reward(last, a=1.0)
        await export(shop.store, tmp_path)
        assert len(rows_of(tmp_path)) == 4
        assert [row["rewards"][0]["position"] for row in rows_of(tmp_path)] == [6, 2, 3, 4]

    run_virtual(scenario())


def test_an_archive_begun_late_has_whole_decisions_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Events up to position 2 were trimmed, of rows none: of the first decision, rewarded at
    position 2, nothing is known any more."""

    async def scenario() -> None:
        shop = await a_shop()
        early = await shop.decide(a_decision(1))
        await shop.reward(early, a=1.0)
        near = await shop.decide(a_decision(2, MORNING + 61.0))
        await shop.reward(near, a=1.0)
        whole = await shop.decide(a_decision(3, MORNING + 122.0 + MARGIN_S))
        await shop.reward(whole, a=1.0)
        await trimmed(shop, 2, 0)
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path) == [whole.id]
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path) == [whole.id]
        assert caplog.text.count("the log begins at position 3") == 1

    run_virtual(scenario())


def test_a_store_that_came_back_from_a_copy_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        for number in range(1, 4):
            await shop.decide(a_decision(number))
        await shop.pass_until(MORNING + LATER_S)
        await export(shop.store, tmp_path)

        fewer = await a_shop()
        with pytest.raises(LogGap, match="the log ends before position 2, which is archived"):
            await export(fewer.store, tmp_path)
        await fewer.pass_until(MORNING + 1.0)
        with pytest.raises(LogGap, match="another event at position 2"):
            await export(fewer.store, tmp_path)

        other = await a_shop()
        await other.pass_until(MORNING + LATER_S)
        await other.decide(a_decision(1))
        said = "row 3 of the store is not the one archived there, decision decision-0000000000003"
        with pytest.raises(LogGap, match=said):
            await export(other.store, tmp_path)
        for number in (2, 4):
            await other.decide(a_decision(number))
        with pytest.raises(LogGap, match=said):
            await export(other.store, tmp_path)
        assert len(ids_of(tmp_path)) == 3

    run_virtual(scenario())


def test_parts_without_their_index_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        await shop.decide(a_decision(1))
        await shop.pass_until(MORNING + LATER_S)
        await export(shop.store, tmp_path)
        (tmp_path / "experiment=shop" / "_archive.db").unlink()
        with pytest.raises(ConfigurationError, match=r"_archive.db is gone"):
            await export(shop.store, tmp_path)
        assert len(ids_of(tmp_path)) == 1

    run_virtual(scenario())


def test_an_index_of_a_newer_forage_or_of_another_program_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        archive = await export(shop.store, tmp_path)
        archive = archive_at(shop.store, tmp_path)
        archive._index._db.execute("PRAGMA user_version = 2")
        archive.close()
        with pytest.raises(UnknownSchema, match="has layout 2, written by a newer Forage"):
            await export(shop.store, tmp_path)
        path = tmp_path / "experiment=shop" / "_archive.db"
        path.write_bytes(b"not a database" * 100)
        with pytest.raises((Damaged, ConfigurationError), match=r"_archive.db"):
            await export(shop.store, tmp_path)

    run_virtual(scenario())
