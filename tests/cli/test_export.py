"""forage export: beside a service and after it, killed and begun again, and what it refuses."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pyarrow.dataset as ds
import pytest

from service.cli.program import main
from service.log.stores import open_store
from tests.cli.forage import environment, expect_refusal, forage, serving, started
from tests.support.warm import Warm
from tests.unit.archived import LATER_S, MORNING, Shop, a_decision

pytestmark = pytest.mark.process

DECISIONS = 600
HEAD = ["experiment", "rows", "final", "open", "parts", "MB"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a log of 600 decisions, every third one rewarded, half of them final."""
    url = f"sqlite:///{tmp_path_factory.mktemp('written') / 'forage.db'}"

    async def write() -> None:
        store = open_store(url)
        await store.open()
        shop = Shop(store)
        await shop.define()
        for number in range(1, DECISIONS + 1):
            at = MORNING if number <= DECISIONS // 2 else MORNING + LATER_S
            decision = await shop.decide(a_decision(number, at))
            if number % 3 == 0:
                await shop.reward(decision, a=number / 7)
        await store.close()

    asyncio.run(write())
    return url


def rewards_of(folder: Path) -> dict[str, list[float]]:
    """By decision; that none is there twice is seen to."""
    rows = ds.dataset(folder, partitioning="hive").to_table(columns=["id", "rewards"]).to_pylist()
    found = {row["id"]: [each["reward"] for each in row["rewards"]] for row in rows}
    assert len(found) == len(rows)
    return found


def all_rewards(upto: int = DECISIONS) -> dict[str, list[float]]:
    return {
        a_decision(number).id: [number / 7] if number % 3 == 0 else []
        for number in range(1, upto + 1)
    }


def test_it_ends_with_0_and_a_table_and_again_changes_nothing(written: str, tmp_path: Path) -> None:
    for _ in range(2):
        ended = forage("export", "--to", "archive", "--store", written, folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        head, line = ended.stdout.splitlines()
        assert head.split() == HEAD
        assert line.split()[:-1] == ["shop", "600", "300", "300", "1"]
        assert rewards_of(tmp_path / "archive") == all_rewards()


def test_what_a_service_decides_is_archived_beside_it(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        for number in range(10):
            running.visit(reward=float(number % 2))
        ended = started("export", "--to", "archive", "--part-rows", "4", folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.splitlines()[1].split()[:-1] == ["zooplus", "10", "0", "10", "0"]
        running.visit()
    rewards = rewards_of(tmp_path / "archive")
    assert sorted(rewards.values()) == [[0.0]] * 5 + [[1.0]] * 5
    with closing(sqlite3.connect(tmp_path / "forage.db")) as db:
        ids = [name for (name,) in db.execute("SELECT id FROM decisions ORDER BY number")]
    assert set(rewards) == set(ids[:10])
    assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
    assert len(rewards_of(tmp_path / "archive")) == 11


def test_one_experiment_is_archived_alone(written: str, tmp_path: Path) -> None:
    path = Path(written.removeprefix("sqlite:///"))
    copy = tmp_path / "forage.db"
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("INSERT INTO experiments VALUES ('broken', 1)")
        db.execute("INSERT INTO events VALUES ('broken', 1, x'00')")
    line = expect_refusal(forage("export", "--to", "archive", folder=tmp_path))
    assert "experiment broken, position 1: a log record cannot be read" in line
    alone = forage("export", "--to", "archive", "--experiment", "shop", folder=tmp_path)
    assert alone.returncode == 0
    assert "broken" not in alone.stdout


def test_a_damaged_row_is_left_out_and_the_status_says_so(written: str, tmp_path: Path) -> None:
    copy = tmp_path / "forage.db"
    copy.write_bytes(Path(written.removeprefix("sqlite:///")).read_bytes())
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("UPDATE decisions SET payload = x'00' WHERE number = 7")
    ended = forage("export", "--to", "archive", folder=tmp_path)
    assert ended.returncode == 1
    assert "experiment shop: row 7 is left out" in ended.stderr
    assert ended.stdout.splitlines()[1].split()[:-1] == ["shop", "599", "299", "300", "1"]


def test_a_part_that_was_changed_is_named(written: str, tmp_path: Path) -> None:
    arguments = ["export", "--to", str(tmp_path), "--store", written]
    assert forage(*arguments).returncode == 0
    [part] = tmp_path.rglob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:-4])
    assert f"{part}: Parquet magic bytes not found" in expect_refusal(forage(*arguments))


def test_killed_at_any_moment_it_goes_on_and_has_each_row_once(
    written: str, tmp_path: Path
) -> None:
    """With kill -9, wherever it was: most of these fall between its first file and its last."""
    archive = tmp_path / "archive"
    command = ["export", "--to", str(archive), "--part-rows", "9", "--store", written]
    rng, killed = Random(1), 0
    for _ in range(12):
        running = Warm(command, tmp_path, environment(), tmp_path / "said")
        while running.poll() is None and not list(archive.glob("*/_archive.db")):
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.3))
        running.kill()
        killed += running.wait() == -signal.SIGKILL
        if list(archive.glob("*/*/*.parquet")):
            rewards = rewards_of(archive)
            assert rewards.items() <= all_rewards().items()
    assert killed > 0
    assert forage(*command).returncode == 0
    assert rewards_of(archive) == all_rewards()


def test_a_unit_that_a_service_erases_leaves_the_archive(tmp_path: Path) -> None:
    question = {"policy": "linucb", "context": {"persona": "cat_connoisseur"}}
    with serving(tmp_path) as running:
        gone = running.post("/select", {**question, "unit": "user-1"})
        running.post("/reward", {"decision_id": gone["decision_id"], "reward": 1.0})
        stays = running.post("/select", {**question, "unit": "user-2"})
        assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
        assert rewards_of(tmp_path / "archive") == {gone["id"]: [1.0], stays["id"]: []}
        running.client.delete("/units/user-1").raise_for_status()
        assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
    assert rewards_of(tmp_path / "archive") == {stays["id"]: []}
    files = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert [path for path in files if gone["id"].encode() in path.read_bytes()] == []


# -- follow ----------------------------------------------------------------------------------------


class Reader(BaseHTTPRequestHandler):
    told: list[tuple[str, dict[str, int]]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.told.append((self.path, json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def told() -> Iterator[tuple[str, list[tuple[str, dict[str, int]]]]]:
    """The URL of a service that takes what readers say, and what they have said."""
    said: list[tuple[str, dict[str, int]]] = []
    handler = type("Told", (Reader,), {"told": said})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", said
        finally:
            server.shutdown()
            thread.join()


def until(met: object, running: subprocess.Popen[bytes] | Warm) -> None:
    deadline = time.monotonic() + 60.0
    while not met():  # type: ignore[operator]
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interruptible() -> None:
    """What a shell runs in the background ignores interrupts, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_follower_archives_what_is_final_tells_the_service_and_holds_the_folder(
    written: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    with told() as (url, said):
        command = [sys.executable, "-m", "service", "export", "--follow", "--to", str(archive)]
        running = subprocess.Popen(
            [*command, "--store", written, "--part-rows", "200", "--url", url],
            env=environment(),
            preexec_fn=interruptible,
        )
        try:
            until(lambda: len(said) > 1, running)
            refused = started("export", "--to", str(archive), "--store", written)
            assert "is being written by another forage export" in expect_refusal(refused)
            assert said[0] == ("/experiments/shop/readers/archive", {"position": 0, "row": 0})
            assert said[1][1] == {"position": DECISIONS // 3 + 1, "row": 200}
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
        finally:
            running.kill()
            running.wait()
    assert rewards_of(archive) == all_rewards(200)
    assert forage("export", "--to", str(archive), "--store", written).returncode == 0
    assert rewards_of(archive) == all_rewards()


def test_a_follower_waits_for_a_store_that_is_not_there_yet(written: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    running = Warm(
        ["export", "--follow", "--to", "archive", "--part-rows", "200"],
        tmp_path,
        environment(FORAGE_URL="http://127.0.0.1:9"),
        said,
    )
    try:
        until(lambda: said.exists() and "waiting for the store" in said.read_text(), running)
        (tmp_path / "copy").write_bytes(Path(written.removeprefix("sqlite:///")).read_bytes())
        (tmp_path / "copy").rename(tmp_path / "forage.db")
        until(lambda: list(tmp_path.glob("archive/*/*/part-*.parquet")), running)
    finally:
        running.kill()


def test_a_service_remembers_what_a_follower_has_taken(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.visit()
        command = ["export", "--follow", "--to", "archive", "--url", running.url]
        following = Warm(command, tmp_path, environment(), tmp_path / "said")
        path = "/experiments/zooplus/readers"
        try:
            until(
                lambda: running.get(path)["readers"].get("archive", {}).get("position"), following
            )
        finally:
            following.kill()
        assert running.get(path)["readers"] == {"archive": {"position": 2, "row": 0}}


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--experiment", "nowhere"], "no experiment nowhere"),
        (["--store", "memory://"], "no other process can read"),
        (["--store", "sqlite:///nothing.db"], "does not exist yet"),
        (["--to", "file/archive"], "Not a directory"),
    ],
)
def test_what_cannot_be_archived_is_said_in_one_line(
    written: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["export", "--to", "archive", "--store", written, *arguments]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("forage: ")
    assert said in line


@pytest.mark.parametrize("arguments", [[], ["--to", "x", "--part-rows", "0"]])
def test_a_command_line_that_is_wrong_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments]) == 2
    assert "forage export: " in capsys.readouterr().err


def test_progress_is_told_on_a_terminal_alone(
    written: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["export", "--to", str(tmp_path), "--store", written]) == 0
    said = capsys.readouterr().err
    assert f"shop: events up to {DECISIONS // 3 + 1}" in said
    assert said.endswith("\r\033[K")
