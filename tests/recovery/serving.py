"""Real processes: a service that is killed and started again, a replay that goes on meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from service.fold import State
from service.follower import Follower
from service.stores import open_store
from service.stores.base import Snapshot
from service.telemetry import Telemetry
from tests.support.ports import free_port
from tests.support.process import unmeasured

START_S = 60.0


def eventually(found: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What `found` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return value


class Service:
    """`forage serve` on a port of its own."""

    def __init__(self, folder: Path, store: str, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"service-{self.port}.log"
        self._environment = {**os.environ, "FORAGE_STORE": store, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.url, timeout=10, trust_env=False)

    def start(self) -> Self:
        command = [sys.executable, "-m", "service", "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._ready():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self

    def _ready(self) -> bool:
        try:
            return self._client.get("/readyz", timeout=1).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        return self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(30)

    def close(self) -> None:
        self._client.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()


@contextmanager
def service(folder: Path, store: str, **environment: str) -> Iterator[Service]:
    serving = Service(folder, store, **environment)
    try:
        yield serving.start()
    finally:
        serving.close()


@contextmanager
def replaying(folder: Path, urls: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`forage-sim replay` under way; its folder is `folder`/run."""
    command = [sys.executable, "-m", "simulator_client", "replay", "--url", urls, *options]
    process = subprocess.Popen(
        [*command, "--out", str(folder / "run"), "--json", str(folder / "summary.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=unmeasured(os.environ),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class _WithoutSnapshots(Follower):
    """Folds the whole log, whatever was saved meanwhile."""

    def __init__(self, url: str) -> None:
        store = open_store(url, readonly=True)

        async def none(experiment: str) -> list[Snapshot]:
            return []

        store.snapshots = none  # type: ignore[method-assign]
        super().__init__(store, Telemetry())


def folded(url: str, experiment: str) -> State:
    """An experiment's state from its log alone."""

    async def fold() -> State:
        follower = _WithoutSnapshots(url)
        await follower.store.open()
        try:
            return await follower.discover(experiment)
        finally:
            await follower.store.close()

    return asyncio.run(fold())
