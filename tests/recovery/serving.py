"""Load that goes on while its service is killed, and the state that its log comes to."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx

from service.log.replicas import Replicas
from service.log.stores import open_store
from service.log.stores.base import Snapshot
from service.state.fold import State
from service.telemetry.metrics import Telemetry
from tests.support.process import unmeasured


def eventually(found: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What `found` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return value


class Callers:
    """Threads that visit one service until they are stopped. visit: with a client and a generator
    of the thread's own."""

    def __init__(
        self, url: str, count: int, visit: Callable[[httpx.Client, Random], object]
    ) -> None:
        self._url, self._visit, self._stopped = url, visit, threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(Random(seed),), daemon=True)
            for seed in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _call(self, rng: Random) -> None:
        with httpx.Client(base_url=self._url, timeout=30.0) as client:
            while not self._stopped.is_set():
                self._visit(client, rng)


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


class _WithoutSnapshots(Replicas):
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
        replicas = _WithoutSnapshots(url)
        await replicas._store.open()
        try:
            return await replicas.discover(experiment)
        finally:
            await replicas._store.close()

    return asyncio.run(fold())
