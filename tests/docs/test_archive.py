"""The examples of docs/archive.md show rows on a log of today, and on one of last week."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.log.stores import open_store
from tests.cli.forage import forage
from tests.docs.page import DOCS, blocks
from tests.support.service import serving
from tests.unit.archived import LATER_S, MORNING, Shop, a_decision

pytestmark = pytest.mark.process

DECISIONS = 12
DUCKDB = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.stdin.read()).fetchall()))"


def example(language: str) -> str:
    [block] = [each for each in blocks(DOCS / "archive.md") if each.language == language]
    return block.text


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the archive of a service that has just begun: of twelve decisions, eight are
    rewarded and four are waited for."""
    folder = tmp_path_factory.mktemp("fresh")
    store = f"sqlite:///{folder / 'forage.db'}"
    with serving(store=store) as wire:
        for number in range(DECISIONS):
            decision = wire.select(policy="linucb")
            if number % 3:
                wire.reward(decision, float(number % 2))
    assert forage("export", "--to", "archive", "--store", store, folder=folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of which the first half is final."""
    folder = tmp_path_factory.mktemp("older")
    store_url = f"sqlite:///{folder / 'forage.db'}"

    async def write() -> None:
        store = open_store(store_url)
        await store.open()
        shop = Shop(store)
        await shop.define()
        for number in range(1, DECISIONS + 1):
            at = MORNING if number <= DECISIONS // 2 else MORNING + LATER_S
            await shop.reward(await shop.decide(a_decision(number, at)), a=1.0)
        await store.close()

    asyncio.run(write())
    assert forage("export", "--to", "archive", "--store", store_url, folder=folder).returncode == 0
    return folder


def run(script: str, folder: Path, typed: str = "") -> str:
    """What a script of Python prints, in a process of its own, as a reader would run it."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def told(folder: Path) -> list[int]:
    """What the example in Python prints: decisions, settled, final."""
    return [int(number) for number in re.findall(r"\d+", run(example("python"), folder))]


def queried(folder: Path, query: str) -> Any:
    """The rows of a query in DuckDB."""
    return json.loads(run(DUCKDB, folder, query))


def test_a_log_of_today_has_decisions_and_what_is_settled_but_nothing_final(fresh: Path) -> None:
    assert told(fresh) == [DECISIONS, 8, 0]


def test_a_log_of_last_week_has_final_rows(older: Path) -> None:
    assert told(older) == [DECISIONS, DECISIONS, DECISIONS // 2]


def test_the_query_gives_each_policys_mean_of_what_is_settled(fresh: Path, older: Path) -> None:
    query = example("sql")
    assert queried(fresh, query) == [["linucb", 8, 0.5, False]]
    assert queried(older, query) == [["lints", DECISIONS, 1.0, False]]
    final = query.replace("WHERE", "WHERE final AND")
    assert queried(older, final) == [["lints", DECISIONS // 2, 1.0, True]]


def test_what_is_waited_for_is_left_out_as_the_page_says(fresh: Path, older: Path) -> None:
    [condition] = re.findall(r"`WHERE (reward_by < now\(\))`", (DOCS / "archive.md").read_text())
    query = example("sql").replace("WHERE", f"WHERE {condition} AND")
    assert queried(fresh, query) == []
    assert queried(older, query) == [["lints", DECISIONS, 1.0, False]]
