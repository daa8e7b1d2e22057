"""The servers of the cases: each a process on the server's core, ready and warm."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from benchmarks.http.cases import CASES, POLICIES, STORES, Case, plan
from simulator_client.load import Plan, Tally, run
from tests.support.ports import free_port
from tests.support.redis_server import redis_server
from tests.support.service_process import Service

SERVER_CORE: Final = 0
CLIENT_CORE: Final = 1
START_S: Final = 60.0
QUIET: Final = {
    "FORAGE_TRAINER": "off",
    "FORAGE_LOG_LEVEL": "error",
    "FORAGE_EXPERIMENTS": str(Path(__file__).parent / "experiment.toml"),
}
LEARN_S: Final = 1.0
LEARNED: Final = 512  # rewards before the first measurement; the net is first trained after 256


class Server(NamedTuple):
    """The address and the process of a server."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """Return the processor time of the process and its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def under(self, asked: Plan) -> tuple[Tally, float]:
        """Carry out a plan; return its counts, and the processor time that the server used."""
        before = self.cpu_s()
        tally = run(asked)
        return tally, self.cpu_s() - before


def pin_client() -> None:
    """Keep this process on the client's core. Raises SystemExit if there is one core only."""
    if not {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        raise SystemExit("this benchmark needs two cores: one for the server, one for the client")
    os.sched_setaffinity(0, {CLIENT_CORE})


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep processes that start within the block on a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def peer(module: str, log: Path) -> Iterator[Server]:
    """Serve an application of `apps` with uvicorn."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.http.apps.{module}:app"]
    command += ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with log.open("ab") as out, on_core(SERVER_CORE):
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_S
    try:
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no answer within {START_S:g} s: {log.read_text()}")
            time.sleep(0.05)
        yield Server(url, process.pid)
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        httpx.post(f"{url}/select", json={}, timeout=5.0)
    except httpx.TransportError:
        return False
    return True


@contextmanager
def forage(folder: Path, store: str, **settings: str) -> Iterator[Service]:
    """Serve Forage on the server's core."""
    with on_core(SERVER_CORE):
        serving = Service(folder, store, **QUIET, **settings).start()
    try:
        yield serving
    finally:
        serving.close()


@contextmanager
def ours(store: str, folder: Path) -> Iterator[Server]:
    """Serve Forage, with policies that have learned and a trained net.

    redis-server runs on the client's core: the service has its own to itself.
    """
    folder.mkdir()
    with ExitStack() as stack:
        where = f"sqlite:///{folder / 'forage.db'}"
        if store.startswith("redis-"):
            with on_core(CLIENT_CORE):
                fsync = store.removeprefix("redis-")
                redis = redis_server(folder, "--appendfsync", fsync, tcp=True)
                where = stack.enter_context(redis).url
        serving = stack.enter_context(forage(folder, where))
        for policy in POLICIES:
            _teach(serving, CASES[f"{store}-{policy}"])
        _train(serving, where)
        yield Server(serving.url, serving.pid)


def _teach(serving: Service, case: Case) -> None:
    """Reward every decision until the case's policy has learned from LEARNED rewards."""
    for seed in count(99):
        if serving.get(f"/policies/{case.policy}")["rewards"] >= LEARNED:
            return
        asked = plan(case, serving.url, seconds=LEARN_S, warmup_s=0.0, seed=seed)
        run(replace(asked, rewards_per_select=1.0))


def _train(serving: Service, where: str) -> None:
    """Train what is due, once, and wait until the net serves."""
    command = [sys.executable, "-m", "service", "train", "--store", where, "--url", serving.url]
    subprocess.run(command, check=True, env={**os.environ, **QUIET})
    deadline = time.monotonic() + START_S
    while serving.get("/policies/neural_linear_ts")["version"] < 1:
        if time.monotonic() > deadline:
            raise RuntimeError("the net was not trained")
        time.sleep(0.2)


@contextmanager
def started(cases: Iterable[Case], folder: Path) -> Iterator[dict[str, Server]]:
    """Serve every server of the cases, by its name."""
    with ExitStack() as stack:
        servers = {}
        for name in dict.fromkeys(case.server for case in cases):
            made = ours(name, folder / name) if name in STORES else peer(name, folder / "peers.log")
            servers[name] = stack.enter_context(made)
        yield servers
