"""`forage serve` in a separate process; tests kill it and start it again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.ports import free_port

START_S = 60.0


class Service:
    """`forage serve` on a free port."""

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
        """Send SIGTERM; return the exit status."""
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
