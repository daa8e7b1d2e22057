"""forage backup, restore and copy: beside a service, between kinds of stores, and cut off."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from service.cli.program import main
from service.log.replicas import Replicas
from service.log.stores import open_store
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
    assert {path.name for path in played[0].glob("*backup*")} == {"backup.db"}
    assert (folder / "forage.db").stat().st_mode & 0o777 == 0o600
    with serving(folder) as running:
        statuses = [reward(running, decision) for decision in (before, between, later)]
        assert statuses == ["duplicate", "accepted", "accepted"]
        running.visit()
        assert running.stop() == 0


KEYS = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


def test_keys_that_no_backup_holds_are_told(tmp_path: Path) -> None:
    """By the command that can see them, by those that cannot, by the doctor and by a start."""
    with serving(tmp_path, FORAGE_TOKEN_KEYS=KEYS) as running:
        running.visit()
        assert running.stop() == 0
    needed = "FORAGE_TOKEN_KEYS has the token secret, and this copy does not: keep those keys"
    for command, keys in (
        (["backup", "--to", "with.db"], {"FORAGE_TOKEN_KEYS": KEYS}),
        (["backup", "--to", "without.db"], {}),
        (["restore", "--from", "with.db", "--store", "sqlite:///again.db"], {}),
        (["copy", "--from", "sqlite:///with.db", "--to", "sqlite:///copied.db"], {}),
    ):
        ended = forage(*command, folder=tmp_path, **keys)
        assert ended.returncode == 0
        assert needed in ended.stderr
        assert ended.stdout.splitlines()[1].split()[0] == "zooplus"
    examined = forage("doctor", "--store", "sqlite:///again.db", folder=tmp_path)
    assert "the store has none: FORAGE_TOKEN_KEYS had it, and is not set here" in examined.stdout
    examined = forage("doctor", folder=tmp_path, FORAGE_TOKEN_KEYS=KEYS)
    assert "no backup of the store holds it" in examined.stdout
    with serving(tmp_path) as running:
        assert "rewards of earlier decisions are refused" in running.said
    with serving(tmp_path) as running:
        assert "rewards of earlier decisions are refused" not in running.said


# -- between kinds of stores -----------------------------------------------------------------------


async def held(url: str) -> dict[str, Any]:
    """All that a store holds of the experiment, and the state that its log folds to. Redis keeps
    marks up to the next second."""
    store = open_store(url, readonly=True)
    await store.open()
    try:
        replicas = Replicas(store)
        instant = await store.describe("zooplus", whole=True)
        return {
            "events": await store.read("zooplus", 0, 10_000),
            "rows": [(row.id, row.payload) for row in await store.decisions("zooplus", 0, 10_000)],
            "marks": {
                mark.identity: replace(mark, keep_until=mark.keep_until and ceil(mark.keep_until))
                for mark in (await store.list_marks("zooplus", "", 1_000))[0]
            },
            "snapshots": await store.snapshots("zooplus"),
            "instant": (instant.position, instant.digest, instant.due, instant.counts),
            "secret": await store.secret(),
            "state": bits(await replicas.discover("zooplus")),
        }
    finally:
        await store.close()


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
        for command in (served, ["restore", "--from", "backup.db"]):
            line = expect_refusal(forage(*command, folder=folder))
            assert "is served by another forage process" in line


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


def test_a_backup_of_a_damaged_store_is_refused(folder: Path) -> None:
    path = folder / "backup.db"
    content = bytearray(path.read_bytes())
    content[4096 * 6 : 4096 * 7] = b"\xff" * 4096
    path.write_bytes(content)
    ended = forage("restore", "--from", "backup.db", folder=folder)
    assert "the copy is not whole" in expect_refusal(ended)
    assert not (folder / "forage.db").exists()
