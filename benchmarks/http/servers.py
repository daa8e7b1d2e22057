"""The servers of the cases, each a process on the server's core, ready and warm."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from benchmarks.http.cases import CASES, POLICIES, STORES, Case, plan
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from tests.support.ports import free_port
from tests.support.redis_server import redis_server
from tests.support.service_process import Service, service

SERVER_CORE: Final = 0
CLIENT_CORE: Final = 1
START_S: Final = 60.0
QUIET: Final = {
    "FORAGE_TRAINER": "off",
    "FORAGE_LOG_LEVEL": "error",
    "FORAGE_EXPERIMENTS": str(Path(__file__).parent / "experiment.toml"),
}
FSYNC: Final = {"redis-everysec": "everysec", "redis-always": "always"}
LEARN_S: Final = 1.0
LEARNED: Final = 512  # rewards, before anything is measured: the net is first trained after 256


class Server(NamedTuple):
    """Where it listens, and its process."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """What the process and its threads used so far."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    """What a process and its threads used of processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes that are started within the block stay on a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def peer(module: str, log: Path) -> Iterator[Server]:
    """An application of `apps` under uvicorn."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.http.apps.{module}:app"]
    command += ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with log.open("ab") as out, on_core(SERVER_CORE):
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: httpx.post(f"{url}/select", json={}, timeout=5.0), process, log, START_S)
        yield Server(url, process.pid)
    finally:
        process.kill()
        process.wait()


@contextmanager
def forage(store: str, log: Path, within_s: float, **environment: str) -> Iterator[Server]:
    """The service alone, given so long to start, and so long to take a last snapshot and end."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    environment = {**os.environ, "FORAGE_STORE": store, **environment}
    with log.open("ab") as out, on_core(SERVER_CORE):
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: httpx.get(f"{url}/readyz", timeout=5.0), process, log, within_s)
        yield Server(url, process.pid)
        process.terminate()
        process.wait(within_s)
    finally:
        process.kill()
        process.wait()


def _wait(
    ask: Callable[[], httpx.Response], process: subprocess.Popen[bytes], log: Path, within_s: float
) -> None:
    """Until it answers, and has no reason to be asked again later."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if ask().status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no answer within {within_s:g} s: {log.read_text()}")
        time.sleep(0.05)


@contextmanager
def ours(store: str, folder: Path) -> Iterator[Server]:
    """The service on a store, its policies having learned, the net trained.

    redis-server runs on the client's core: the service has its own to itself.
    """
    folder.mkdir()
    with ExitStack() as stack:
        where = f"sqlite:///{folder / 'forage.db'}"
        if store in FSYNC:
            with on_core(CLIENT_CORE):
                redis = redis_server(folder, "--appendfsync", FSYNC[store], tcp=True)
                where = stack.enter_context(redis).url
        with on_core(SERVER_CORE):
            serving = stack.enter_context(service(folder, where, **QUIET))
        _learn(store, serving, where)
        yield Server(serving.url, serving.pid)


def _learn(store: str, serving: Service, where: str) -> None:
    for policy in POLICIES:
        teach(serving, CASES[f"{store}-{policy}"], LEARNED)
    train(serving, where)


def teach(serving: Service, case: Case, rewards: int) -> None:
    """Reward every decision until the case's policy has learned from so many."""
    for seed in count(99):
        if serving.get(f"/policies/{case.policy}")["rewards"] >= rewards:
            return
        asked = plan(case, serving.url, seconds=LEARN_S, warmup_s=0.0, rate=None, seed=seed)
        asyncio.run(measure(replace(asked, rewards_per_select=1.0), Silent()))


def train(serving: Service, where: str) -> None:
    """Train what is due, once, until the net serves."""
    subprocess.run(trainer(serving.url, where), check=True, env={**os.environ, **QUIET})
    deadline = time.monotonic() + START_S
    while serving.get("/policies/neural_linear_ts")["version"] < 1:
        if time.monotonic() > deadline:
            raise RuntimeError("the net was not trained")
        time.sleep(0.2)


def trainer(url: str, where: str, *options: str) -> list[str]:
    """The command that trains what is due in a store, for a service."""
    command = [sys.executable, "-m", "service", "train", "--store", where, "--url", url]
    return [*command, *options]


@contextmanager
def started(cases: list[Case], folder: Path) -> Iterator[dict[str, Server]]:
    """Every server that the cases need, by its name."""
    with ExitStack() as stack:
        servers = {}
        for name in dict.fromkeys(case.server for case in cases):
            make = ours(name, folder / name) if name in STORES else peer(name, folder / "peers.log")
            servers[name] = stack.enter_context(make)
        yield servers
