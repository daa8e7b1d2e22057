"""forage serve: start, what a process costs, stop, and the reasons not to start."""

import base64
import re
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.forage import START_S, Serving, expect_refusal, forage, serving, started

pytestmark = pytest.mark.process

SHOP = Path(__file__).parents[1] / "http" / "shop.toml"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Started with nothing given but the port, in a folder of its own."""
    with serving(tmp_path_factory.mktemp("zoo"), cold=True) as running:
        yield running


def folder_of(running: Serving) -> Path:
    return Path(f"/proc/{running.pid}/cwd").resolve()


def test_with_nothing_given_it_serves_the_zooplus_example(zoo: Serving) -> None:
    [experiment] = zoo.get("/experiments")["experiments"]
    assert (experiment["name"], experiment["arms"]) == ("zooplus", 50)
    answer = zoo.post("/select", {"context": {"persona": "budget_shopper"}})
    assert answer["logged"] is True
    reward = {"decision_id": answer["decision_id"], "reward": 1.0}
    assert zoo.post("/reward", reward) == {"status": "accepted"}
    assert zoo.get("/readyz")["ready"] is True
    assert re.search(r"serving zooplus on http://127\.0\.0\.1:\d+ .*store sqlite", zoo.said)
    assert "Traceback" not in zoo.said
    assert stat.S_IMODE((folder_of(zoo) / "forage.db").stat().st_mode) == 0o600
    health = zoo.get("/healthz")
    assert (health["status"], health["store"]) == ("ok", "sqlite")
    assert "power loss" in health["durability"]


def test_a_serving_process_has_neither_torch_nor_pyarrow_and_stays_small(zoo: Serving) -> None:
    """All policies asked and taught; the bound is that of DESIGN's budgets."""
    policies = [policy["name"] for policy in zoo.get("/policies")["policies"]]
    for policy in policies * 25:
        zoo.visit(policy)
    maps = Path(f"/proc/{zoo.pid}/maps").read_text()
    assert not re.search(r"torch|pandas|matplotlib|pyarrow", maps)
    status = Path(f"/proc/{zoo.pid}/status").read_text()
    resident_kib = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident_kib is not None
    assert int(resident_kib[1]) < 150 * 1_024


@pytest.mark.parametrize("size", [1_048_577, 20_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_answered_and_the_next_request_too(
    zoo: Serving, size: int, chunked: bool
) -> None:
    body = b"x" * size
    content = (body[start : start + 65_536] for start in range(0, size, 65_536))
    answer = zoo.client.post(
        "/select",
        content=content if chunked else body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert zoo.get("/healthz")["status"] == "ok"


def test_a_client_that_closes_its_side_gets_its_answer(zoo: Serving) -> None:
    host, port = zoo.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), START_S) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        found = b"".join(iter(lambda: client.recv(65_536), b""))
    assert found.startswith(b"HTTP/1.1 200")


def test_a_busy_port_is_said_in_one_line(zoo: Serving, tmp_path: Path) -> None:
    port = zoo.url.rpartition(":")[2]
    line = expect_refusal(forage("serve", "--port", port, folder=tmp_path))
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert not (tmp_path / "forage.db").exists()


def test_a_database_that_another_process_holds_is_said_in_one_line(zoo: Serving) -> None:
    line = expect_refusal(started("serve", "--port", "0", folder=folder_of(zoo)))
    assert "forage.db" in line
    assert "another forage process" in line
    assert zoo.get("/readyz")["ready"] is True


def test_settings_come_from_the_environment_and_options_win(tmp_path: Path) -> None:
    coins = tmp_path / "coins.toml"  # without a name of its own: that of the file
    coins.write_text("[policies]\ntoss = { kind = 'random' }\n[arms]\nheads = {}\n")
    settings = {
        "FORAGE_STORE": f"sqlite:///{tmp_path}/not-this.db",
        "FORAGE_EXPERIMENTS": f"{SHOP},{coins}",
        "FORAGE_MAX_BATCH": "1",
    }
    with serving(tmp_path, "--store", "memory://", **settings) as running:
        assert running.get("/healthz")["store"] == "memory"
        assert not (tmp_path / "not-this.db").exists()
        served = [each["name"] for each in running.get("/experiments")["experiments"]]
        assert served == ["shop", "coins"]
        two = {"requests": [{"context": {"persona": "cat"}}] * 2}
        assert running.client.post("/select/batch", json=two).status_code == 422
        assert running.stop() == 0


# -- signals ---------------------------------------------------------------------------------------


@pytest.fixture
def half_asked(tmp_path: Path) -> Iterator[Serving]:
    """It has half of a request, for which a stop waits."""
    with serving(tmp_path, "--experiment", str(SHOP), "--store", "memory://") as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
            )
            running.client.get("/healthz")  # answered after the half has been read
            yield running


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGTERM, signal.SIGTERM, 143), (signal.SIGTERM, signal.SIGINT, 130)],
)
def test_a_second_signal_ends_it_at_once(
    half_asked: Serving, first: int, second: int, status: int
) -> None:
    half_asked.signal(first)
    wait_until(lambda: "another signal ends it" in half_asked.said)
    half_asked.signal(second)
    assert half_asked.wait() == status
    assert "requests under way are cut off" in half_asked.said
    assert "Traceback" not in half_asked.said


OLD, NEW = (
    base64.b64encode(secret * 2).decode() for secret in (b"the old secret", b"another one!")
)


def test_a_hangup_has_settings_and_keys_read_again(tmp_path: Path) -> None:
    """A decision of before is rewarded under the new secret, and one of the new not without it."""
    settings = tmp_path / "forage.env"
    settings.write_text(f"FORAGE_TOKEN_KEYS={OLD}\nFORAGE_MAX_BATCH=7\n")
    options = ["--experiment", str(SHOP), "--store", "memory://"]
    with serving(tmp_path, *options, FORAGE_ENV_FILE=str(settings)) as running:
        question = {"context": {"persona": "cat"}}

        def reward(decision: dict[str, str]) -> int:
            body = {"decision_id": decision["decision_id"], "reward": 1.0}
            return running.client.post("/reward", json=body).status_code

        old = running.post("/select", question)
        settings.write_text(
            f"FORAGE_TOKEN_KEYS={NEW},{OLD}\nFORAGE_MAX_BATCH=8\nFORAGE_LOG_LEVEL=debug\n"
        )
        running.signal(signal.SIGHUP)
        wait_until(lambda: "need a restart: FORAGE_MAX_BATCH" in running.said)
        assert "changed: FORAGE_LOG_LEVEL, FORAGE_TOKEN_KEYS" in running.said
        assert reward(old) == 200
        new = running.post("/select", question)
        settings.write_text(f"FORAGE_TOKEN_KEYS={OLD}\n")
        running.signal(signal.SIGHUP)
        wait_until(lambda: running.said.count("settings read again") == 2)
        assert reward(new) == 422
        settings.write_text("FORAGE_TOKEN_KEYS=short\n")
        running.signal(signal.SIGHUP)
        wait_until(lambda: "keeping the old settings: FORAGE_TOKEN_KEYS" in running.said)
        assert running.get("/readyz")["ready"] is True
        assert running.stop() == 0


# -- stop and start again --------------------------------------------------------------------------


def snapshots(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "forage.db") as db:
        rows = db.execute("SELECT position FROM snapshots ORDER BY position").fetchall()
    db.close()
    return [position for (position,) in rows]


def test_sigterm_saves_the_state_and_ends_with_0(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        for _ in range(3):
            running.visit()
        head = running.get("/policies/linucb")["head"]
        position = running.get("/experiments/zooplus")["position"]
        assert snapshots(tmp_path) == []
        assert running.stop() == 0
        assert "Traceback" not in running.said
    assert snapshots(tmp_path) == [position]
    with serving(tmp_path) as running:
        assert running.get("/policies/linucb")["head"] == head
        running.visit()
        assert running.get("/policies/linucb")["rewards"] == 4
