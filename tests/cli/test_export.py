"""forage export: beside a service and after it, killed and continued, and its refusals."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from service.log.stores import open_store
from tests.cli.forage import environment, expect_refusal, forage, serving, started
from tests.support.archived import DAY_S, MORNING, Shop, a_decision, ids_of, positions_of, rows_of
from tests.support.warm import Warm

pytestmark = pytest.mark.process

DAYS, VISITS = 20, 30
"""Days of the log, and decisions of each."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a log of 20 days, so that its archive has as many files of each kind."""
    url = f"sqlite:///{tmp_path_factory.mktemp('written') / 'forage.db'}"

    async def write() -> None:
        store = open_store(url)
        await store.open()
        shop = Shop(store)
        await shop.define()
        for number in range(DAYS * VISITS):
            decision = await shop.decide(a_decision(number, MORNING + number // VISITS * DAY_S))
            await shop.reward(decision, a=number / 7)
        await store.close()

    asyncio.run(write())
    return url


@pytest.fixture
def copied(written: str, tmp_path: Path) -> sqlite3.Connection:
    """A copy of that log in the folder of the test, open."""
    path = tmp_path / "forage.db"
    path.write_bytes(Path(written.removeprefix("sqlite:///")).read_bytes())
    return sqlite3.connect(path, isolation_level=None)


def expect_whole(archive: Path) -> None:
    assert ids_of(archive) == [a_decision(number).id for number in range(DAYS * VISITS)]
    assert positions_of(archive) == list(range(1, DAYS * VISITS + 2))


def test_a_second_run_changes_nothing(written: str, tmp_path: Path) -> None:
    for counts in (["600", "601"], ["0", "0"]):
        ended = forage("export", "--to", "archive", "--store", written, folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        head, line = ended.stdout.splitlines()
        assert head == "experiment  new decisions  new events"
        assert line.split() == ["shop", *counts]
        expect_whole(tmp_path / "archive")


def test_several_processes_write_what_one_writes(written: str, tmp_path: Path) -> None:
    said = []
    for count in ("1", "2"):
        archive = tmp_path / count
        command = ("export", "--to", str(archive), "--store", written, "--parallel", count)
        ended = started(*command, folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        files = sorted(archive.rglob("*.parquet"))
        said.append([(str(one.relative_to(archive)), one.read_bytes()) for one in files])
    assert said[0] == said[1]
    assert len(said[0]) == 2 * DAYS


def test_a_damaged_decision_is_left_out_and_the_status_says_so(
    copied: sqlite3.Connection, tmp_path: Path
) -> None:
    with closing(copied):
        copied.execute("UPDATE decisions SET payload = x'00' WHERE number = 7")
    ended = forage("export", "--to", "archive", folder=tmp_path)
    assert ended.returncode == 1
    assert "experiment shop: decision row 7 is left out" in ended.stderr
    assert ended.stdout.splitlines()[1].split() == ["shop", "599", "601"]


def test_killed_at_any_moment_it_goes_on_without_loss_or_double(
    written: str, tmp_path: Path
) -> None:
    """With kill -9, after every third file."""
    archive, killed = tmp_path / "archive", 0
    command = ["export", "--to", str(archive), "--store", written]
    for files in range(1, 2 * DAYS, 3):
        running = Warm(command, tmp_path, environment(), tmp_path / "said")
        while running.poll() is None and len(list(archive.rglob("*.parquet"))) < files:
            time.sleep(0.001)
        running.kill()
        killed += running.wait() == -signal.SIGKILL
    assert killed > 0
    assert forage(*command).returncode == 0
    expect_whole(archive)


def test_an_erased_unit_leaves_the_archive_of_a_service_that_serves(tmp_path: Path) -> None:
    question = {"policy": "linucb", "context": {"persona": "cat_connoisseur"}}
    archive = tmp_path / "archive"
    with serving(tmp_path) as running:
        gone = running.post("/select", {**question, "unit": "user-1"})
        running.post("/reward", {"decision_id": gone["decision_id"], "reward": 1.0})
        stays = running.post("/select", {**question, "unit": "user-2"})
        assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
        decisions = rows_of(archive, "decisions", "zooplus")
        assert [row["id"] for row in decisions] == [gone["id"], stays["id"]]
        running.client.delete("/units/user-1").raise_for_status()
        assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
    assert [row["id"] for row in rows_of(archive, "decisions", "zooplus")] == [stays["id"]]
    assert not [row for row in rows_of(archive, "events", "zooplus") if row["settled"]]


# -- follow ----------------------------------------------------------------------------------------


def until(met: object, running: subprocess.Popen[bytes] | Warm) -> None:
    deadline = time.monotonic() + 60.0
    while not met():  # type: ignore[operator]
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_follower_exports_reports_to_the_service_and_holds_the_folder(tmp_path: Path) -> None:
    archive, path = tmp_path / "archive", "/experiments/zooplus/readers"
    with serving(tmp_path) as running:
        running.visit()
        command = [sys.executable, "-m", "service", "export", "--follow", "--to", str(archive)]
        following = subprocess.Popen(
            [*command, "--url", running.url],
            cwd=tmp_path,
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            whole = {"archive": {"position": 2, "row": 1}}
            until(lambda: running.get(path)["readers"] == whole, following)
            refused = started("export", "--to", str(archive), folder=tmp_path)
            assert "another forage export writes" in expect_refusal(refused)
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 0
        finally:
            following.kill()
            following.wait()
    assert len(rows_of(archive, "decisions", "zooplus")) == 1


def test_a_follower_waits_for_the_store_and_goes_on_without_the_service(
    written: str, tmp_path: Path
) -> None:
    said, archive = tmp_path / "said", tmp_path / "archive"
    running = Warm(
        ["export", "--follow", "--to", "archive"],
        tmp_path,
        environment(FORAGE_URL="http://127.0.0.1:9"),
        said,
    )
    try:
        until(lambda: said.exists() and "waiting for the store" in said.read_text(), running)
        (tmp_path / "copy").write_bytes(Path(written.removeprefix("sqlite:///")).read_bytes())
        (tmp_path / "copy").rename(tmp_path / "forage.db")
        until(lambda: len(ids_of(archive)) == DAYS * VISITS, running)
    finally:
        running.kill()


# -- refusals --------------------------------------------------------------------------------------
