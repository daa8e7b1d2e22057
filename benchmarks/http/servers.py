"""The servers of the cases, each a process on the server's core, ready and warm."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from benchmarks.http.cases import CASES, POLICIES, STORES, Case, plan
from simulator_client.load import measure
from simulator_client.load_progress import Silent
from tests.recovery.serving import Service, free_port, service
from tests.support.redis_server import redis_server

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
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
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
        _wait(f"{url}/select", process, log)
        yield Server(url, process.pid)
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers, whatever it says."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            httpx.post(url, json={}, timeout=5.0)
        except httpx.TransportError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{url} does not answer: {log.read_text()}") from error
            time.sleep(0.05)
        else:
            return


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
                redis = redis_server(folder, "--appendfsync", FSYNC[store])
                where = stack.enter_context(redis).url
        with on_core(SERVER_CORE):
            serving = stack.enter_context(service(folder, where, **QUIET))
        _learn(store, serving, where)
        yield Server(serving.url, serving.pid)


def _learn(store: str, serving: Service, where: str) -> None:
    for policy in POLICIES:
        case = CASES[f"{store}-{policy}"]
        asked = plan(case, serving.url, seconds=LEARN_S, warmup_s=0.0, rate=None, seed=99)
        while serving.get(f"/policies/{policy}")["rewards"] < LEARNED:
            asyncio.run(measure(replace(asked, rewards_per_select=1.0), Silent()))
    command = [sys.executable, "-m", "service", "train", "--store", where, "--url", serving.url]
    subprocess.run(command, check=True, env={**os.environ, **QUIET})
    deadline = time.monotonic() + START_S
    while serving.get("/policies/neural_linear_ts")["version"] < 1:
        if time.monotonic() > deadline:
            raise RuntimeError("the net was not trained")
        time.sleep(0.2)


@contextmanager
def started(cases: list[Case], folder: Path) -> Iterator[dict[str, Server]]:
    """Every server that the cases need, by its name."""
    with ExitStack() as stack:
        servers = {}
        for name in dict.fromkeys(case.server for case in cases):
            make = ours(name, folder / name) if name in STORES else peer(name, folder / "peers.log")
            servers[name] = stack.enter_context(make)
        yield servers
