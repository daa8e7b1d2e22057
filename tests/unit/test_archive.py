"""What an archive holds: which rows are final, what came of them, and what a later run adds."""

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from service.errors import Damaged
from service.log.stores.base import Append, DecisionRow
from service.log.stores.memory import MemoryStore
from service.maintenance.archive.archiver import MARGIN_S, Sizes
from service.maintenance.archive.files import Folder, totals
from service.state.events import ArmRemoved, encode_decision, encode_event
from tests.support.clock import run_virtual
from tests.unit.archived import (
    ACCEPT_S,
    DAY_S,
    LATER_S,
    MORNING,
    SHOP,
    WAIT_S,
    Shop,
    a_decision,
    archive_at,
    export,
    ids_of,
    names_of,
    rows_of,
)


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


def utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


async def a_shop() -> Shop:
    shop = Shop(MemoryStore())
    await shop.define()
    return shop


def test_a_row_comes_back_as_it_was_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        decision = await shop.decide(a_decision(5, MORNING + 0.25, slots=3, deferred=True))
        await shop.reward(decision, a=0.1 + 0.2, b=-0.0)
        await shop.correct(decision, 0.1, after=900.0, a=1 / 3)
        await shop.pass_until(decision.at + LATER_S)
        await export(shop.store, tmp_path)

        [row] = rows_of(tmp_path)
        assert (row.pop("experiment"), row.pop("day")) == ("shop", "2026-01-01")
        rewards, shown = row.pop("rewards"), row.pop("shown")
        probabilities = row.pop("probabilities")
        assert row == {
            "id": "decision-0000000000005",
            "at": datetime(2026, 1, 1, 10, 0, 0, 250_000, UTC),
            "policy": "lints",
            "key": "",
            "assignment": 0.25,
            "model_version": "lints/0@5",
            "schema_version": 1,
            "unit": "unit-00000000000000000000000000000005",
            "context": '{"pet":"cat 5","age":0.30000000000000004}',
            "arms": ["a", "b", "c"],
            "inline": '{"c":{"kind":"toy"}}',
            "seed": 2**63 - 6,
            "bank": 7,
            "slate": 1 / 7,
            "deferred": True,
            "reward_by": utc(decision.reward_by),
            "accept_until": utc(decision.accept_until),
            "final": True,
        }
        assert list(map(bits, probabilities)) == list(map(bits, decision.probabilities))
        for archived, logged in zip(shown, decision.shown, strict=True):
            assert (archived["arm"], archived["inline"]) == (logged.arm, logged.inline)
            assert bits(archived["propensity"]) == bits(logged.propensity)
            assert list(map(bits, archived["x"])) == list(map(bits, logged.x))
        first, second = rewards
        assert bits(second.pop("reward")) == bits(-0.0)
        at = utc(decision.at + 60.0)
        assert second == {
            "arm": "b", "default": False, "at": at, "position": 2, "corrections": 0
        }  # fmt: skip
        at = utc(decision.at + 900.0)
        assert first == {
            "arm": "a", "reward": 1 / 3, "default": False, "at": at, "position": 3, "corrections": 1
        }  # fmt: skip

    run_virtual(scenario())


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        await shop.decide(a_decision(1))
        await export(shop.store, tmp_path)
        [name] = names_of(tmp_path)
        metadata = pq.read_schema(tmp_path / "experiment=shop" / name).metadata
        assert metadata[b"forage.archive_schema"] == b"1"
        assert metadata[b"forage.experiment"] == b"shop"

    run_virtual(scenario())


def test_a_default_holds_until_it_is_corrected_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        missed = await shop.decide(a_decision(1), due=True)
        late = await shop.decide(a_decision(2), due=True)
        never = await shop.decide(a_decision(3))
        await shop.expire(missed, reward=0.5)
        await shop.expire(late)
        await shop.correct(late, 0.0, a=1.0)
        await export(shop.store, tmp_path)
        told = {
            row["id"]: [(r["reward"], r["default"], r["corrections"]) for r in row["rewards"]]
            for row in rows_of(tmp_path)
        }
        assert told == {missed.id: [(0.5, True, 0)], late.id: [(1.0, False, 1)], never.id: []}

    run_virtual(scenario())


def test_the_arms_of_a_slate_may_be_settled_one_by_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        slate = await shop.decide(a_decision(1, slots=3))
        await shop.reward(slate, b=1.0)
        await shop.correct(slate, None, after=70.0, c=0.5)  # its first word, in a joint event
        await shop.expire(slate)
        await export(shop.store, tmp_path)
        [row] = rows_of(tmp_path)
        assert [(r["arm"], r["reward"], r["corrections"]) for r in row["rewards"]][1:2] == [
            ("c", 0.0, 0)
        ]

    run_virtual(scenario())


# -- finality --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed", "final"),
    [
        (WAIT_S + ACCEPT_S + MARGIN_S + 1.0, True),
        (WAIT_S + ACCEPT_S + MARGIN_S - 1.0, False),
        (WAIT_S + ACCEPT_S + 1.0, False),
    ],
)
def test_a_decision_is_final_a_margin_after_rewards_are_accepted(
    passed: float, final: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        decision = await shop.decide(a_decision(1))
        await shop.pass_until(decision.at + passed)
        await export(shop.store, tmp_path)
        assert [row["final"] for row in rows_of(tmp_path)] == [final]
        kind = "part" if final else "open"
        assert names_of(tmp_path) == [f"day=2026-01-01/{kind}-000000000001.parquet"]

    run_virtual(scenario())


def test_the_newest_row_tells_the_time_where_nothing_is_rewarded(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        for number in range(700):  # more than three pages
            await shop.decide(a_decision(number, MORNING + 10.0 * number))
        await export(shop.store, tmp_path)
        # the last is made 6,990 s in; until 2,189 s of it, 219 rows of them are final
        assert len(ids_of(tmp_path, final=True)) == 219
        assert len(ids_of(tmp_path)) == 700

    run_virtual(scenario())


def test_a_service_whose_clock_is_ahead_makes_nothing_final(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        decision = await shop.decide(a_decision(1))
        await shop.pass_until(decision.at + 365 * DAY_S)
        await export(shop.store, tmp_path, clock=lambda: decision.at + 60.0)
        assert ids_of(tmp_path, final=True) == []
        await export(shop.store, tmp_path, clock=lambda: decision.at + LATER_S)
        assert ids_of(tmp_path, final=True) == [decision.id]

    run_virtual(scenario())


def test_what_is_still_due_is_not_final_after_an_outage_longer_than_its_time(
    tmp_path: Path,
) -> None:
    """The log was gone for a day; the default reward comes after the first new decision."""

    async def scenario() -> None:
        shop = await a_shop()
        settled = await shop.decide(a_decision(1), due=True)
        await shop.reward(settled, a=1.0)
        missed = await shop.decide(a_decision(2, MORNING + 1.0), due=True)
        after = await shop.decide(a_decision(3, MORNING + 2.0))
        await shop.pass_until(MORNING + DAY_S)
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path, final=True) == [settled.id]
        await shop.expire(missed, after=DAY_S + 1.0)
        await export(shop.store, tmp_path)
        assert ids_of(tmp_path, final=True) == [settled.id, missed.id, after.id]
        assert rows_of(tmp_path)[1]["rewards"][0]["default"] is True

    run_virtual(scenario())


def test_a_damaged_row_is_left_out_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        damaged = encode_decision(a_decision(1)).replace(b"lints", b"linxs")
        await shop.store.commit([DecisionRow(SHOP, "one", "lints", damaged, MORNING)])
        whole = await shop.decide(a_decision(2), due=True)
        await shop.reward(whole, a=1.0)
        await shop.pass_until(MORNING + LATER_S)
        archive = await export(shop.store, tmp_path)
        assert archive.unreadable == 1
        assert ids_of(tmp_path, final=True) == [whole.id]
        assert "row 1 is left out" in caplog.text

    run_virtual(scenario())


@pytest.mark.parametrize(
    "changes", [{"seed": 2**63}, {"accept_until": 1e300}, {"at": -1e15}, {"reward_by": 1e13}]
)
def test_a_row_that_no_column_holds_is_left_out(changes: dict[str, Any], tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        await shop.decide(a_decision(1, **{"at": MORNING, **changes}))
        await shop.decide(a_decision(2))
        archive = await export(shop.store, tmp_path)
        assert (archive.unreadable, ids_of(tmp_path)) == (1, [a_decision(2).id])

    run_virtual(scenario())


def test_a_damaged_event_ends_the_run_and_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        payload = encode_event(ArmRemoved(at=MORNING, arm="rope"))
        await shop.store.commit([Append(SHOP, payload.replace(b"rope", b"soap"), {"m": ""})])
        with pytest.raises(Damaged, match="experiment shop, position 2: "):
            await export(shop.store, tmp_path)

    run_virtual(scenario())


# -- runs ------------------------------------------------------------------------------------------


def test_a_later_run_adds_what_is_new_and_replaces_what_was_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        first = await shop.decide(a_decision(1))
        second = await shop.decide(a_decision(2, MORNING + LATER_S - 2.0))
        await shop.reward(first, a=1.0)
        await export(shop.store, tmp_path)
        part = "day=2026-01-01/part-000000000001.parquet"
        assert names_of(tmp_path) == ["day=2026-01-01/open-000000000001.parquet"]

        await shop.pass_until(first.at + LATER_S)
        await export(shop.store, tmp_path)
        assert names_of(tmp_path) == ["day=2026-01-01/open-000000000002.parquet", part]
        content = (tmp_path / "experiment=shop" / part).read_bytes()

        await shop.reward(second, a=0.5)
        await export(shop.store, tmp_path)
        assert [row["rewards"][0]["reward"] for row in rows_of(tmp_path)] == [0.5, 1.0]
        await export(shop.store, tmp_path)
        assert (tmp_path / "experiment=shop" / part).read_bytes() == content
        assert sorted(ids_of(tmp_path)) == [first.id, second.id]
        await shop.pass_until(second.at + LATER_S)
        await export(shop.store, tmp_path)
        assert names_of(tmp_path) == [part, part.replace("1.p", "2.p")]
        found = totals(Folder(tmp_path, SHOP))
        assert (found.final, found.open, found.parts) == (2, 0, 2)

    run_virtual(scenario())


def test_parts_are_by_day_and_hold_so_many_rows(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        midnight = MORNING + 14 * 3_600.0
        for number in range(1, 1_001):  # 500 before midnight; by turns around it
            at = midnight + 2.0 * (number - 500) + (40.0 if number % 2 else -40.0)
            await shop.decide(a_decision(number, at))
        await shop.pass_until(midnight + 2_000.0 + LATER_S)
        await export(shop.store, tmp_path, Sizes(part_rows=400))
        rows = {path: pq.read_metadata(tmp_path / "experiment=shop" / path).num_rows
                for path in names_of(tmp_path)}  # fmt: skip
        assert rows == {
            "day=2026-01-01/part-000000000001.parquet": 400,
            "day=2026-01-01/part-000000000401.parquet": 99,
            "day=2026-01-02/part-000000000481.parquet": 301,
            "day=2026-01-02/part-000000000801.parquet": 200,
        }
        assert all(row["day"] == row["at"].date().isoformat() for row in rows_of(tmp_path))
        assert len(set(ids_of(tmp_path))) == 1_000

    run_virtual(scenario())


def test_many_days_at_once_make_a_part_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        for number in range(500):
            await shop.decide(a_decision(number, MORNING + DAY_S * (number * 37 % 40)))
        await shop.pass_until(MORNING + 41 * DAY_S)
        await export(shop.store, tmp_path)
        assert len(set(ids_of(tmp_path, final=True))) == 500
        assert len({row["day"] for row in rows_of(tmp_path)}) == 40

    run_virtual(scenario())


def test_outcomes_leave_the_index_with_their_rows_or_a_month_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await a_shop()
        lost = a_decision(1)  # its row never came
        await shop.reward(lost, a=1.0)
        await shop.reward(await shop.decide(a_decision(2)), a=1.0)
        young = await shop.decide(a_decision(3, MORNING + 31 * DAY_S))
        await shop.reward(young, a=1.0)
        await shop.pass_until(young.at + 60.0)
        await export(shop.store, tmp_path)
        assert await held() == {lost.id, young.id}
        await shop.pass_until(young.at + LATER_S)
        await export(shop.store, tmp_path)
        assert await held() == set()

    async def held() -> set[str]:
        archive = archive_at(MemoryStore(), tmp_path)
        found = archive._index.find([a_decision(number).id for number in (1, 2, 3)])
        archive.close()
        return set(found)

    run_virtual(scenario())
