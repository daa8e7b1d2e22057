"""forage backup, restore and copy: beside a service, between kinds of stores, and cut off."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.cli.program import main
from service.log.follower import Follower
from service.log.stores import Store, open_store
from service.log.stores.base import KeptMark
from service.observability.telemetry import Telemetry
from tests.cli.forage import Serving, environment, expect_refusal, forage, serving, started
from tests.support.redis_server import RedisServer, redis_server
from tests.unit.folding import bits

pytestmark = pytest.mark.process

POLICIES = ["linucb", "lints", "neural_linear_ts", "random"]
HEAD = ["experiment", "position", "decisions", "due"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def question(running: Serving) -> Any:
    return running.post("/select", {"policy": "linucb", "context": {"persona": "fish_hobbyist"}})


def reward(running: Serving, decision: Any) -> str:
    body = {"decision_id": decision["decision_id"], "reward": 1}
    status: str = running.post("/reward", body)["status"]
    return status


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder of a service that was backed up while it served, and three of its decisions: one
    rewarded before, one open then, one of later."""
    folder = tmp_path_factory.mktemp("played")
    with serving(folder) as running:
        for policy in POLICIES * 3:
            running.visit(policy)
        before, between = question(running), question(running)
        assert reward(running, before) == "accepted"
        backed = started("backup", "--to", "backup.db", folder=folder)
        assert (backed.returncode, backed.stderr) == (0, "")
        lines = [line.split() for line in backed.stdout.splitlines()]
        assert lines == [HEAD, ["zooplus", "14", "14", "1"]]
        later = question(running)
        assert reward(running, later) == "accepted"
        assert running.stop() == 0
    return folder, [before, between, later]


@pytest.fixture
def folder(played: tuple[Path, list[Any]], tmp_path: Path) -> Path:
    """One that has the backup alone."""
    for path in played[0].glob("backup.db*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_a_backup_is_one_file_of_its_owner(played: tuple[Path, list[Any]]) -> None:
    folder, _ = played
    assert {path.name for path in folder.glob("*backup*")} == {"backup.db"}
    assert (folder / "backup.db").stat().st_mode & 0o777 == 0o600


def test_a_backup_is_audited_as_a_store(folder: Path) -> None:
    ended = forage("audit", "--store", "sqlite:///backup.db", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1].split()[:3] == ["zooplus", "14", "14"]
    assert {path.name for path in folder.iterdir()} == {"backup.db"}


def test_a_service_goes_on_from_where_the_backup_was_taken(
    folder: Path, played: tuple[Path, list[Any]]
) -> None:
    before, between, later = played[1]
    restored = started("restore", "--from", "backup.db", folder=folder)
    assert (restored.returncode, restored.stderr) == (0, "")
    assert (folder / "forage.db").stat().st_mode & 0o777 == 0o600
    with serving(folder) as running:
        statuses = [reward(running, decision) for decision in (before, between, later)]
        assert statuses == ["duplicate", "accepted", "accepted"]
        running.visit()
        assert running.stop() == 0


# -- between kinds of stores -----------------------------------------------------------------------


async def held(url: str) -> dict[str, Any]:
    """All that a store holds of the experiment, and the state that its log folds to."""
    store = open_store(url, readonly=True)
    await store.open()
    try:
        follower = Follower(store, Telemetry())
        instant = await store.describe("zooplus", whole=True)
        return {
            "events": await store.read("zooplus", 0, 10_000),
            "rows": [(row.id, row.payload) for row in await store.decisions("zooplus", 0, 10_000)],
            "marks": await marks(store),
            "snapshots": await store.snapshots("zooplus"),
            "instant": (instant.position, instant.checksum, instant.due, instant.counts),
            "secret": await store.secret(),
            "state": bits(await follower.discover("zooplus")),
        }
    finally:
        await store.close()


async def marks(store: Store) -> dict[str, KeptMark]:
    found, cursor = dict[str, KeptMark](), ""
    while True:
        page, cursor = await store.list_marks("zooplus", cursor, 1_000)
        found |= {mark.identity: mark for mark in page}
        if not cursor:
            return found


def test_a_copy_into_redis_and_back_keeps_all(
    folder: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.command("FLUSHALL")
    urls = [f"sqlite:///{folder}/backup.db", server.url, f"sqlite:///{folder}/again.db"]
    for source, target in pairwise(urls):
        assert main(["copy", "--from", source, "--to", target]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [HEAD, ["zooplus", "14", "14", "1"]] * 2
    told = [asyncio.run(held(url)) for url in urls]
    assert len(told[0]["events"]) == 14
    assert len(told[0]["marks"]) == 27  # the definition's, and two of each reward
    assert told == [told[0]] * 3


def test_a_copy_is_served_and_needs_stores_without_a_service(
    folder: Path, server: RedisServer, played: tuple[Path, list[Any]]
) -> None:
    server.command("FLUSHALL")
    copy = ["copy", "--from", "sqlite:///backup.db", "--to", server.url]
    assert started(*copy, folder=folder).returncode == 0
    with serving(folder, "--store", server.url) as running:
        statuses = [reward(running, decision) for decision in played[1]]
        assert statuses == ["duplicate", "accepted", "accepted"]
        back = ["copy", "--from", server.url, "--to", "sqlite:///new.db"]
        assert "stop all services" in expect_refusal(forage(*back, folder=folder))
        assert running.stop() == 0
    again = expect_refusal(forage(*copy, folder=folder))
    assert "holds experiment zooplus, and nothing is written over" in again
    with serving(folder):
        served = ["copy", "--from", "sqlite:///forage.db", "--to", "sqlite:///new.db"]
        assert "is served by another forage process" in expect_refusal(
            forage(*served, folder=folder)
        )


KILLED = """
import os
from pathlib import Path
from service.cli.program import main

rename = Path.rename

def die_instead(path, to):
    if to.name == "forage.db":
        os.kill(os.getpid(), 9)
    return rename(path, to)

Path.rename = die_instead
main(["restore", "--from", "backup.db"])
"""


def test_a_restore_that_is_killed_leaves_no_database_and_is_begun_again(folder: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=folder, env=environment(), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "forage.db").exists()
    assert forage("restore", "--from", "backup.db", folder=folder).returncode == 0
    assert forage("audit", folder=folder).returncode == 0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backup", "--to", "backup.db"], "backup.db exists, and nothing is written over"),
        (["backup", "--to", "old.db"], "old.db-wal exists, and nothing is written over"),
        (["backup", "--to", "nowhere/b.db"], "nowhere/b.db does not exist"),
        (["backup", "--to", "b.db", "--store", "sqlite:///no.db"], "no.db does not exist yet"),
        (["backup", "--to", "b.db", "--store", "memory://"], "no other process can read"),
        (["backup", "--to", "b.db", "--store", "postgres://h"], "unknown scheme"),
        (["restore", "--from", "no.db"], "no.db does not exist"),
        (["restore", "--from", "old.db-wal", "--store", "sqlite:///n.db"], "not an SQLite"),
        (["restore", "--from", "backup.db"], "forage.db exists, and nothing is written over"),
        (["restore", "--from", "backup.db", "--store", "memory://"], "backups are of sqlite"),
        (["restore", "--from", "backup.db", "--store", "redis://h"], "Redis makes its own"),
        (["backup", "--to", "b.db", "--store", "redis://h"], "Redis makes its own"),
        (["copy", "--from", "sqlite:///no.db", "--to", "sqlite:///n.db"], "no.db does not exist"),
        (["copy", "--from", "memory://", "--to", "sqlite:///n.db"], "ends with its process"),
        (["copy", "--from", "sqlite:///forage.db", "--to", "redis://127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_and_changes_nothing(
    folder: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(folder / "backup.db", folder / "forage.db")
    (folder / "old.db-wal").write_bytes(b"of a database that is gone" * 1_000)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.chdir(folder)
    assert main(arguments) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name: after[name] for name in after if not name.endswith(".lock")} == before


def test_a_store_that_is_served_is_not_restored_over(folder: Path) -> None:
    with serving(folder):
        ended = forage("restore", "--from", "backup.db", folder=folder)
        assert "is served by another forage process" in expect_refusal(ended)


def test_a_backup_of_a_damaged_store_is_refused(folder: Path) -> None:
    path = folder / "backup.db"
    content = bytearray(path.read_bytes())
    content[4096 * 6 : 4096 * 7] = b"\xff" * 4096
    path.write_bytes(content)
    ended = forage("restore", "--from", "backup.db", folder=folder)
    assert "the copy is not whole" in expect_refusal(ended)
    assert not (folder / "forage.db").exists()
