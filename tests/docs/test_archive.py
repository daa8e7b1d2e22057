"""The SQL and the Python of docs/archive.md, run on archives of real exports."""

from contextlib import chdir
from math import isnan
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from service.analysis.history import key_of, read_history
from service.log.stores import Store
from service.log.stores.memory import MemoryStore
from service.state.decisions import decode_decision
from service.state.events import Skipped
from tests.docs.page import DOCS, blocks
from tests.support.archived import MORNING, SHOP, Shop, a_decision, export
from tests.support.clock import run_virtual

VIEWS, QUERY = [each.text for each in blocks(DOCS / "archive.md") if each.language == "sql"]
[SCRIPT] = [each.text for each in blocks(DOCS / "archive.md") if each.language == "python"]


def queried(folder: Path, query: str) -> list[Any]:
    """Return the rows of a query over the views, run beside the archive."""
    with chdir(folder), duckdb.connect() as db:
        db.execute(VIEWS)
        found: list[Any] = db.execute(query).fetchall()
        return found


async def written(store: Store) -> Shop:
    """Write a log with every way in which a shown arm is settled."""
    shop = Shop(store)
    await shop.define()
    decisions = [await shop.decide(a_decision(n, MORNING + n, slots=3)) for n in range(9)]
    await shop.reward(decisions[1], a=0.5, b=0.25)
    await shop.expire(decisions[2])
    await shop.expire(decisions[3])
    await shop.correct(decisions[3], 0.0, b=1.0)
    await shop.correct(decisions[3], 1.0, b=2.0)
    await shop.expire(decisions[4])
    await shop.correct(decisions[4], 0.0, withdrawn=["c"], b=1.0, c=0.0)
    await shop.expire(decisions[5])
    await shop.correct(decisions[5], 0.0, withdrawn=["c"], c=0.0)
    await shop.correct(decisions[5], None, c=3.0)
    await shop.reward(decisions[6], a=1.0)
    await shop.expire(decisions[7])
    await shop.erase(decisions[7])
    return shop


async def skip_last(shop: Shop) -> None:
    position = (await shop.events())[-1].position
    await shop.append(
        Skipped(at=MORNING, position=position, reason=""), mark=("skip/0", str(position))
    )


async def known_to_evaluation(store: Store) -> dict[tuple[str, str], float | None]:
    """Read the rewards of shown arms as `forage evaluate` does. None: not settled."""
    history = await read_history(store, SHOP)
    found: dict[tuple[str, str], float | None] = {}
    for row in await store.decisions(SHOP, 0, 100):
        decision = decode_decision(row.payload)
        for shown in decision.shown:
            [value] = history.settlements(np.array([key_of(decision.id, shown.arm)])).value
            found[decision.id, shown.arm] = None if isnan(value) else float(value)
    return found


@pytest.mark.parametrize("exported_before_skip", [True, False])
def test_the_join_gives_the_rewards_that_evaluation_reads(
    exported_before_skip: bool, tmp_path: Path
) -> None:
    async def scenario() -> None:
        shop = await written(MemoryStore())
        await shop.reward(a_decision(8, slots=3), a=9.0)
        if exported_before_skip:
            await export(shop.store, tmp_path / "archive")
        await skip_last(shop)
        await export(shop.store, tmp_path / "archive")
        known = await known_to_evaluation(shop.store)
        rows = queried(tmp_path, "SELECT id, arm, reward FROM outcomes")
        assert len(rows) == len(known) == 8 * 3
        assert {(decision, arm): reward for decision, arm, reward in rows} == known
        assert [known[a_decision(5).id, arm] for arm in "abc"] == [0.0, 0.0, 3.0]
        assert [known[a_decision(8).id, arm] for arm in "abc"] == [None, None, None]

    run_virtual(scenario())


def test_a_row_of_the_join_has_its_slots_propensity_and_what_settled_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = await written(MemoryStore())
        await export(shop.store, tmp_path / "archive")
        columns = "arm, propensity, is_default, policy, numbers[3]"
        query = f"SELECT {columns} FROM outcomes WHERE numbers[3] = 3 / 7 ORDER BY arm"  # noqa: S608
        rows = queried(tmp_path, query)
        assert rows == [
            ("a", 1 / 3, True, "lints", 3 / 7),
            ("b", 1 / 4, False, "lints", 3 / 7),
            ("c", 1 / 5, True, "lints", 3 / 7),
        ]

    run_virtual(scenario())


def test_the_query_leaves_out_decisions_that_wait_for_their_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        shop = Shop(MemoryStore())
        await shop.define()
        for number in range(6):
            decision = await shop.decide(
                a_decision(number, MORNING + number, context={"persona": f"cat {number % 2}"})
            )
            await shop.reward(decision, a=float(number))
        await export(shop.store, tmp_path / "archive")

    run_virtual(scenario())
    assert "now()" in QUERY
    fourth = QUERY.replace("now()", "TIMESTAMPTZ '2026-01-01 10:10:04Z'")  # 600 s to wait
    assert queried(tmp_path, fourth) == [("lints", "cat 0", 2, 1.0), ("lints", "cat 1", 2, 2.0)]


def test_pyarrow_reads_the_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        await export((await written(MemoryStore())).store, tmp_path / "archive")

    run_virtual(scenario())
    with chdir(tmp_path):
        exec(SCRIPT, {})  # noqa: S102
    assert capsys.readouterr().out == "8 decisions\n"
