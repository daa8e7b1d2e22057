"""An archive of every store there is: rows and rewards, order, erasure, trimming, by page."""

from pathlib import Path

import pytest

from service.errors import LogGap
from service.log.stores import Store
from service.log.stores.base import Cut, Snapshot
from service.maintenance.archive.archiver import Sizes
from tests.support.stores import Backend
from tests.unit.archived import (
    LATER_S,
    MORNING,
    SHOP,
    Shop,
    a_decision,
    export,
    ids_of,
    rows_of,
)


async def played(store: Store, decisions: int = 450) -> Shop:
    """More than two pages of decisions, a tenth of a second apart; what is due was settled."""
    shop = Shop(store)
    await shop.define()
    for number in range(1, decisions + 1):
        decision = await shop.decide(a_decision(number, MORNING + number / 10), due=True)
        if number % 2:
            await shop.reward(decision, a=number / 7)
        else:
            await shop.expire(decision)
    await shop.pass_until(MORNING + 100.0 + LATER_S)
    return shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_rows_come_in_order_with_what_came_of_them(backend: Backend, folder: Path) -> None:
    async def scenario(store: Store) -> None:
        await played(store)
        await export(store, folder, Sizes(part_rows=250))
        rows = rows_of(folder)
        assert [row["id"] for row in rows] == [a_decision(n).id for n in range(1, 451)]
        assert all(row["final"] for row in rows)
        found = [(r["reward"], r["default"]) for row in rows for r in row["rewards"]]
        assert found == [(n / 7, False) if n % 2 else (0.0, True) for n in range(1, 451)]

    backend.run(scenario)


def test_what_is_due_is_open_and_all_before_it_is_final(backend: Backend, folder: Path) -> None:
    async def scenario(store: Store) -> None:
        shop = Shop(store)
        await shop.define()
        settled = await shop.decide(a_decision(1), due=True)
        await shop.expire(settled)
        missed = await shop.decide(a_decision(2, MORNING + 1.0), due=True)
        await shop.decide(a_decision(3, MORNING + 2.0))
        await shop.pass_until(MORNING + 10 * LATER_S)
        await export(store, folder)
        assert ids_of(folder, final=True) == [settled.id]
        await shop.expire(missed)
        await export(store, folder)
        assert len(ids_of(folder, final=True)) == 3

    backend.run(scenario)


def test_what_is_erased_goes_and_what_is_trimmed_stays(backend: Backend, folder: Path) -> None:
    async def scenario(store: Store) -> None:
        shop = await played(store, 20)
        await export(store, folder)
        await shop.erase(a_decision(3), a_decision(17))
        await export(store, folder)
        kept = [a_decision(number).id for number in range(1, 21) if number not in (3, 17)]
        assert ids_of(folder) == kept
        events = await shop.events()
        await store.save_snapshot(SHOP, Snapshot(events[-1].position, b"", origin=True))
        while await store.trim(SHOP, Cut(events[-1].position, 10, 0.0), 100):
            pass
        await export(store, folder)
        assert ids_of(folder) == kept
        later = [a_decision(number, MORNING + 300.0) for number in (21, 22)]
        for decision in later:
            await shop.reward(await shop.decide(decision), a=1.0)
        await export(store, folder)
        assert [row["rewards"][0]["reward"] for row in rows_of(folder) if not row["final"]] == [
            1.0,
            1.0,
        ]
        assert sorted(ids_of(folder)) == sorted([*kept, *(each.id for each in later)])

    backend.run(scenario)


def test_a_log_trimmed_too_far_is_refused(backend: Backend, folder: Path) -> None:
    async def scenario(store: Store) -> None:
        shop = Shop(store)
        await shop.define()
        await export(store, folder)
        for number in range(1, 4):
            await shop.reward(await shop.decide(a_decision(number)), a=1.0)
        await store.save_snapshot(SHOP, Snapshot(4, b"", origin=True))
        while await store.trim(SHOP, Cut(3, 0, 0.0), 100):
            pass
        with pytest.raises(LogGap, match="goes on at position 4, and is archived up to 1"):
            await export(store, folder)

    backend.run(scenario)


def test_the_row_after_the_last_one_that_was_erased_is_archived(
    backend: Backend, folder: Path
) -> None:
    """An archive goes on by row numbers: one that is given twice would hide the second row."""

    async def scenario(store: Store) -> None:
        shop = await played(store, 3)
        await export(store, folder)
        await shop.erase(a_decision(3))
        await export(store, folder)
        await shop.decide(a_decision(4))
        await export(store, folder)
        assert ids_of(folder) == [a_decision(number).id for number in (1, 2, 4)]

    backend.run(scenario)
