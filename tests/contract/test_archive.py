"""An archive of every store: content, files, kills, erasure, trimming and refusals."""

import asyncio
import json
import os
import shutil
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from service.errors import ConfigurationError, Damaged, LogGap
from service.log.stores import Store
from service.log.stores.base import Append, DecisionRow
from service.log.stores.memory import MemoryStore
from service.offline.archive.export import Exporter, pack_decisions
from service.offline.processes import Processes
from service.state.decisions import DecisionFacts, Shortlist, decode_decision, encode_decision
from service.state.events import Skipped
from tests.support.archived import (
    DAY_S,
    DEFINITION,
    MORNING,
    SHOP,
    Shop,
    a_decision,
    export,
    ids_of,
    names_of,
    positions_of,
    rows_of,
)
from tests.support.clock import run_virtual
from tests.support.scenarios import virtual
from tests.support.stores import over_every_store

SMALL = 1_150
"""Bytes of a file: five decisions or four events of the shop."""


async def a_shop(store: Store | None = None, name: str = SHOP) -> Shop:
    shop = Shop(store or MemoryStore(), name)
    await shop.define()
    return shop


async def played(decisions: int, store: Store | None = None) -> Shop:
    """Decide a second apart; reward the odd decisions, let the even ones expire."""
    shop = await a_shop(store)
    made = [a_decision(number, MORNING + number) for number in range(1, decisions + 1)]
    async with shop.at_once():
        for decision in made:
            await shop.decide(decision)
    async with shop.at_once():
        for number, decision in enumerate(made, 1):
            if number % 2:
                await shop.reward(decision, a=number / 7)
            else:
                await shop.expire(decision)
    return shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def ids(*numbers: int) -> list[str]:
    return [a_decision(number).id for number in numbers]


def bits(number: float) -> bytes:
    return struct.pack(">d", number)


def contents(archive: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in archive.rglob("*.parquet")}


# -- content ---------------------------------------------------------------------------------------


@over_every_store
async def test_decisions_and_events_are_archived_in_log_order(store: Store, folder: Path) -> None:
    """Of each experiment in a folder of its own."""
    await played(450, store)  # more than two pages of rows
    zoo = await a_shop(store, "zoo")
    await zoo.decide(a_decision(1))
    await export(store, folder, "zoo")
    assert len(rows_of(folder, "decisions", "zoo")) == 1
    exported = await export(store, folder)
    assert (exported.decisions, exported.events, exported.damaged) == (450, 451, 0)
    assert ids_of(folder) == ids(*range(1, 451))
    assert positions_of(folder) == list(range(1, 452))
    settled = [row for row in rows_of(folder, "events") if row["settled"]]
    assert [row["decision"] for row in settled] == ids(*range(1, 451))
    assert [(row["type"], row["settled"][0]["reward"]) for row in settled] == [
        ("Rewarded", n / 7) if n % 2 else ("Expired", 0.0) for n in range(1, 451)
    ]
    assert await export(store, folder) == type(exported)(SHOP, 0, 0, 0)


@virtual
async def test_columns_hold_the_decision_bit_for_bit(folder: Path) -> None:
    shop = await a_shop()
    shortlist = Shortlist("lints", "scan", 100, 2, 3, 4)
    logged = await shop.decide(
        a_decision(
            1,
            slots=2,
            key="page",
            facts=DecisionFacts((2,), shortlist),
            attributes={"c": {"stock": 2.0}},
        )
    )
    logged = decode_decision(encode_decision(logged))
    await export(shop.store, folder)
    [row] = rows_of(folder, "decisions")
    for name in ("id", "policy", "model_version", "unit", "key", "arms", "seed", "deferred"):
        assert row[name] == getattr(logged, name), name
    for name in ("assignment", "slate_log"):
        assert bits(row[name]) == bits(getattr(logged, name))
    times = [row[name].timestamp() for name in ("time", "reward_by", "accept_until")]
    assert times == [logged.at, logged.reward_by, logged.accept_until]
    assert list(map(bits, row["probabilities"])) == list(map(bits, logged.probabilities))
    for archived, shown in zip(row["shown"], logged.shown, strict=True):
        assert (archived["arm"], archived["inline"]) == (shown.arm, shown.inline)
        assert bits(archived["propensity"]) == bits(shown.propensity)
        assert struct.pack("<3d", *archived["numbers"]) == shown.row.numbers
        assert tuple(archived["places"]) == shown.row.places
    assert json.loads(row["context"]) == logged.context
    assert json.loads(row["inline"]) == logged.inline
    assert json.loads(row["attributes"]) == logged.attributes == {"c": {"stock": 2.0}}
    facts = json.loads(row["facts"])
    assert (facts["untried"], facts["shortlist"]["catalogue"]) == ([2], 100)


@virtual
async def test_columns_hold_corrections_and_other_events(folder: Path) -> None:
    shop = await a_shop()
    decision = await shop.decide(a_decision(1))
    await shop.expire(decision)
    await shop.correct(decision, 0.0, withdrawn=["a"], a=0.5)
    await export(shop.store, folder)
    defined, expired, corrected = rows_of(folder, "events")
    assert json.loads(defined["body"])["definition"] == DEFINITION
    assert (defined["settled"], expired["body"], expired["policy"]) == (None, None, "lints")
    [one] = corrected["settled"]
    assert (one["arm"], one["reward"], one["was"], one["since"]) == ("a", 0.5, 0.0, 2)
    assert (one["withdrawn"], expired["settled"][0]["withdrawn"]) == (True, False)


# -- files -----------------------------------------------------------------------------------------


@virtual
async def test_a_file_ends_with_its_size_or_its_day_and_never_changes(folder: Path) -> None:
    shop = await a_shop()
    for number in range(1, 9):
        late = DAY_S if number > 7 else 0.0
        await shop.decide(a_decision(number, MORNING + late))
    await export(shop.store, folder, file_bytes=SMALL)
    names = ["day=2026-01-01/1-5", "day=2026-01-01/6-7", "day=2026-01-02/8-8"]
    assert names_of(folder) == names
    before = contents(folder)
    await shop.decide(a_decision(9))  # of the day before, but logged after it
    await export(shop.store, folder)
    assert names_of(folder) == [*names, "day=2026-01-02/9-9"]
    assert contents(folder).items() >= before.items()


class Late(Processes):
    """Two processes, the first draft of which takes the longest. then: what happens once the first
    decisions lie in a draft."""

    def __init__(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(2)
        self.seconds, self.then = 10.0, then

    async def run(self, work: Any, *asked: object, count: object = None) -> Any:
        self.seconds /= 2
        await asyncio.sleep(self.seconds)
        packed = await work(*asked)
        if self.then is not None and work is pack_decisions:
            then, self.then = self.then, None
            await then()
        return packed


@virtual
async def test_files_that_several_processes_write_are_those_of_one(folder: Path) -> None:
    shop = await played(24)
    for name, processes in (("one", None), ("several", Late())):
        archive = folder / name
        await Exporter(shop.store, SHOP, archive, file_bytes=SMALL, processes=processes).run()
    one, several = (
        {str(path.relative_to(folder / name)): own for path, own in contents(folder / name).items()}
        for name in ("one", "several")
    )
    assert one == several
    assert len(one) > 8


@virtual
async def test_an_erasure_reaches_decisions_that_several_processes_have_written(
    folder: Path,
) -> None:
    shop = await played(24)

    async def erase() -> None:
        await shop.erase(a_decision(20), a_decision(3))

    await Exporter(shop.store, SHOP, folder, file_bytes=SMALL, processes=Late(erase)).run()
    assert ids_of(folder) == ids(1, 2, *range(4, 20), *range(21, 25))


@virtual
async def test_a_block_has_a_row_for_each_decision_and_loses_those_that_are_erased(
    folder: Path,
) -> None:
    """Three blocks of 150 decisions: each is more than a batch of rows with the next one."""
    shop = await a_shop()
    made = [a_decision(number) for number in range(1, 451)]
    async with shop.at_once():
        for decision in made:
            await shop.decide(decision)
        for start in range(0, 450, 150):
            await shop.expire(*made[start : start + 150])
    before = await export(shop.store, folder / "before")
    assert (before.decisions, before.events) == (450, 451)
    await shop.erase(made[3], *made[300:])
    kept = ids(*(number for number in range(1, 301) if number != 4))
    for name in ("before", "after"):
        await export(shop.store, folder / name)
        settled = [row for row in rows_of(folder / name, "events") if row["settled"]]
        assert sorted(row["decision"] for row in settled) == kept
        assert {row["position"] for row in settled} == {2, 3}


class Killed(BaseException):
    """Ends an export where it stands."""


def test_an_export_that_was_killed_anywhere_goes_on_without_loss_or_double(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies at each sync to disk in turn: before and after each rename, erasure included."""
    synced = os.fsync

    async def begun() -> Shop:
        shop = await played(12)
        await export(shop.store, folder / "begun", file_bytes=SMALL)
        await shop.erase(a_decision(2), a_decision(9))
        for number in range(13, 16):
            await shop.reward(await shop.decide(a_decision(number)), a=1.0)
        return shop

    async def killed_at(moment: int) -> bool:
        archive, left = folder / str(moment), moment

        def sync(file: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            synced(file)

        shutil.copytree(folder / "begun", archive)
        monkeypatch.setattr(os, "fsync", sync)
        died = False
        try:
            await export(store, archive, file_bytes=SMALL)
        except Killed:
            died = True
        finally:
            monkeypatch.setattr(os, "fsync", synced)
        await export(store, archive, file_bytes=SMALL)
        assert ids_of(archive) == ids(1, *range(3, 9), *range(10, 16))
        assert positions_of(archive) == [n for n in range(1, 18) if n not in (3, 10)]
        assert not list(archive.rglob(".draft*"))
        return died

    store = run_virtual(begun()).store
    moment = 0
    while run_virtual(killed_at(moment)):
        moment += 1
    assert moment > 15


@virtual
async def test_files_that_are_foreign_or_damaged_are_named(folder: Path) -> None:
    shop = await a_shop()
    await export(shop.store, folder)
    [(path, whole)] = contents(folder).items()
    path.write_bytes(whole[:-4])
    with pytest.raises(Damaged, match=f"{path}: Parquet magic bytes not found"):
        await export(shop.store, folder)
    path.write_bytes(whole)
    (path.parent / "mine.parquet").touch()
    with pytest.raises(ConfigurationError, match=r"mine.parquet is not a file of an archive"):
        await export(shop.store, folder)


# -- erasure and trimming --------------------------------------------------------------------------


@over_every_store
async def test_erased_decisions_leave_the_archive_and_trimmed_ones_stay(
    store: Store, folder: Path
) -> None:
    shop = await played(20, store)
    await export(store, folder, file_bytes=SMALL)
    names = names_of(folder)
    await shop.erase(a_decision(3), a_decision(20))
    await export(store, folder)
    kept = ids(*(number for number in range(1, 20) if number != 3))
    assert ids_of(folder) == kept
    assert names_of(folder) == names
    events = rows_of(folder, "events")
    assert [row["decision"] for row in events if row["settled"]] == kept
    unit = str(a_decision(3).unit).encode()
    assert not any(unit in content for content in contents(folder).values())

    await shop.trim((await shop.events())[-1].position, 20)
    await export(store, folder)
    assert ids_of(folder) == kept
    await shop.reward(await shop.decide(a_decision(21, MORNING + 300.0)), a=1.0)
    await export(store, folder)
    assert ids_of(folder) == [*kept, *ids(21)]
    assert [row["position"] for row in rows_of(folder, "events")][-1] == 23


@virtual
async def test_a_row_that_is_erased_after_its_event_stays_out(folder: Path) -> None:
    """The service logs the event first and deletes the rows last: an export may run in between."""
    shop = await played(2)
    [late] = await shop.store.decisions(SHOP, 1, 1)
    await shop.erase(a_decision(2))
    await export(shop.store, folder)
    await shop.store.commit([DecisionRow(SHOP, late.id, "lints", late.payload)])
    await export(shop.store, folder)
    assert ids_of(folder) == ids(1)


@virtual
async def test_an_archive_begun_after_trimming_says_what_it_lacks(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = await played(3)
    await shop.trim(2, 1)
    await export(shop.store, folder)
    assert (ids_of(folder), positions_of(folder)) == (ids(2, 3), [3, 4])
    await export(shop.store, folder)
    assert caplog.text.count("events before position 3 were trimmed") == 1


# -- refusals --------------------------------------------------------------------------------------


@over_every_store
async def test_a_log_trimmed_beyond_the_archive_is_refused(store: Store, folder: Path) -> None:
    shop = await a_shop(store)
    await export(store, folder)
    for number in range(1, 4):
        await shop.reward(await shop.decide(a_decision(number)), a=1.0)
    await shop.trim(3, 0)
    with pytest.raises(LogGap, match="before position 4 were trimmed, and the archive ends at"):
        await export(store, folder)


@virtual
async def test_another_log_is_refused(folder: Path) -> None:
    await export((await played(3)).store, folder)
    other = await a_shop()
    with pytest.raises(LogGap, match="the log ends at position 1, the archive at 4"):
        await export(other.store, folder)
    other = await played(2)
    await other.reward(a_decision(2), a=1.0)
    with pytest.raises(LogGap, match="log and archive differ at position 4"):
        await export(other.store, folder)

    fewer = await a_shop()
    for number in range(1, 4):
        decision = a_decision(number, MORNING + number)
        if number < 3:
            await fewer.decide(decision)
        await (fewer.reward(decision, a=number / 7) if number % 2 else fewer.expire(decision))
    with pytest.raises(LogGap, match="store and archive differ at decision row 3"):
        await export(fewer.store, folder)
    await fewer.decide(a_decision(4))
    with pytest.raises(LogGap, match="store and archive differ at decision row 3"):
        await export(fewer.store, folder)


@virtual
async def test_damaged_records_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = await played(1)
    await shop.store.commit([DecisionRow(SHOP, "broken", "lints", b"{}")])
    await shop.decide(a_decision(2))
    assert (await export(shop.store, folder)).damaged == 1
    assert ids_of(folder) == ids(1, 2)
    assert "experiment shop: decision row 2 is left out" in caplog.text

    await shop.store.commit([Append(SHOP, b"{}", {"broken": ""})])
    with pytest.raises(Damaged, match="experiment shop, position 3: a log record cannot be"):
        await export(shop.store, folder)
    skipped = Skipped(at=MORNING, position=3, reason="damaged")
    await shop.append(skipped, mark=("skip/0", "3"))
    await export(shop.store, folder)
    assert positions_of(folder) == [1, 2, 4]
