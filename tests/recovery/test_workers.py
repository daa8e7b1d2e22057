"""`forage serve --workers`: processes that share a port and a log, and are killed at any moment."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.processes import listeners
from tests.chaos.workers import LEAST, killed_workers
from tests.support.service_process import Service, service

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux"),
]

WITHIN_S = 120.0


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def listening(running: Service, workers: int = 2) -> None:
    wait_until(lambda: listeners(running.port) == workers)


def select(running: Service, times: int) -> None:
    """Ask on a connection of its own each time: they are shared out over the workers."""
    for number in range(times):
        body = {"context": {"persona": "cat_connoisseur"}, "unit": f"u{number}"}
        httpx.post(f"{running.url}/select", json=body, trust_env=False).raise_for_status()


def decisions(running: Service) -> float:
    text = httpx.get(f"{running.url}/metrics", trust_env=False).raise_for_status().text
    return sum(map(float, re.findall(r"^forage_decisions_total{.*} (\S+)$", text, re.MULTILINE)))


def shown(running: Service) -> int:
    """How many decisions the console lists."""
    return len(running.get("/experiments/zooplus/decisions?limit=50")["decisions"])


def test_killed_workers_cost_what_they_had_in_hand_alone(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    result = asyncio.run(killed_workers("sqlite", tmp_path, store, 2, 5.0, Random(1)))
    assert not result.violations
    assert result.kills["worker"] >= LEAST
    assert result.acknowledged > 100
    assert (result.lost, result.doubled, result.heads_equal) == (0, 0, True)


def test_counts_are_of_all_workers_and_never_run_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, store, FORAGE_WORKERS="2", FORAGE_TRAINER="off") as running:
        listening(running)
        select(running, 30)
        assert [decisions(running) for _ in range(8)] == [30] * 8
        assert shown(running) == 30
        for _ in range(2):
            os.kill(children(running.pid)[0], signal.SIGKILL)
            wait_until(lambda: listeners(running.port) == 1)
            assert [decisions(running) for _ in range(4)] == [30] * 4
            listening(running)
            assert [decisions(running) for _ in range(8)] == [30] * 8
            assert shown(running) == 30
        assert running.stop() == 0


def test_a_stop_and_a_reload_reach_all_workers(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, store, FORAGE_WORKERS="2", FORAGE_TRAINER="off") as running:
        listening(running)
        os.kill(running.pid, signal.SIGHUP)
        told = "settings read again"
        wait_until(lambda: running.log.read_text().count(told) == 3)
        workers = children(running.pid)
        assert running.stop() == 0
        assert not any(Path(f"/proc/{one}").exists() for one in workers)
        assert "nobody says" not in running.log.read_text()


def test_workers_stop_where_their_service_is_killed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, store, FORAGE_WORKERS="2", FORAGE_TRAINER="off") as running:
        listening(running)
        workers = children(running.pid)
        running.kill()
        wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in workers))
        running.start()  # on the same port and file


def test_a_service_that_cannot_start_says_why_once_and_ends(tmp_path: Path) -> None:
    def start(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "service", "serve", "--workers", "2", *options]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN_S, cwd=tmp_path, check=False
        )

    store = f"sqlite:///{tmp_path}/forage.db"
    with service(tmp_path, store, FORAGE_WORKERS="2", FORAGE_TRAINER="off") as running:
        taken = start("--port", str(running.port))
        assert (taken.returncode, taken.stderr.count("cannot listen on")) == (1, 1)
    with service(tmp_path, store, FORAGE_TRAINER="off"):
        locked = start("--port", "0", "--store", store)
        assert locked.returncode == 1
        assert locked.stderr.count("is served by another forage process") == 1
