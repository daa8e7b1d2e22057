"""Processes that are started again whenever they end, so that they may be killed at any moment."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Final

import httpx

from tests.support.ports import free_port

EXPERIMENT: Final = Path(__file__).with_name("experiment.toml")
NAME: Final = "chaos"
LOOK_S: Final = 0.02
AGAIN_S: Final = 0.2
"""Pause before a process that ended by itself is started again: its store may be down."""
READY_S: Final = 90.0
"""Longer than any start, also where the machine has other work; a longer one is a fault."""


class NotReady(Exception):
    pass


class Process:
    """A command, its log file, and how it ended.

    ended   exit statuses of those that ended by themselves
    stops   exit status and seconds of each end after a SIGTERM, unless a kill came first
    held    it is not started again, once it has ended
    """

    def __init__(self, name: str, folder: Path, command: list[str], **settings: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.ended: list[int] = []
        self.stops: list[tuple[int, float]] = []
        self.held = False
        self._asked: float | None = None
        self._command = [sys.executable, "-m", "service", *command]
        ours = {key: value for key, value in os.environ.items() if not key.startswith("FORAGE_")}
        self._environment: Mapping[str, str] = {**ours, "OPENBLAS_NUM_THREADS": "1", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )

    def kill(self) -> bool:
        """kill -9. False where there was nothing to kill."""
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        self._process = self._asked = None
        return True

    def terminate(self) -> bool:
        """SIGTERM; `stops` tells how it ended. False where nothing runs, or was told so before."""
        if self._process is None or self._process.poll() is not None or self.stopping:
            return False
        self._asked = monotonic()
        self._process.terminate()
        return True

    @property
    def children(self) -> list[int]:
        """Ids of the processes that it has started and that run."""
        if self._process is None or self._process.poll() is not None:
            return []
        task = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in task.read_text().split() if not _is_dead(int(pid))]

    def freeze(self) -> None:
        """It does nothing until it is thawed or killed."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    @property
    def stopping(self) -> bool:
        """From its SIGTERM until it is seen to have ended."""
        return self._asked is not None

    def said(self, text: str) -> int:
        """How often it is in the log file."""
        return self.log.read_text().count(text) if self.log.exists() else 0

    async def keep(self) -> None:
        """Start it, and again whenever it has ended, until cancelled."""
        while True:
            if self._process is not None and (status := self._process.poll()) is not None:
                if self._asked is not None:
                    self.stops.append((status, monotonic() - self._asked))
                else:
                    self.on_end(status)
                self._process = self._asked = None
                await asyncio.sleep(AGAIN_S)
            if self._process is None and not self.held:
                self.start()
            await asyncio.sleep(LOOK_S)

    def on_end(self, status: int) -> None:
        self.ended.append(status)


class Replica(Process):
    """`forage serve` on a port of its own.

    deserted   how often it ended by itself after it had been ready: never, if all is well
    """

    def __init__(self, name: str, folder: Path, store: str, **settings: str) -> None:
        self.port = port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.deserted = 0
        self._was_ready = False
        settings = {
            "FORAGE_STORE": store,
            "FORAGE_EXPERIMENTS": str(EXPERIMENT),
            "FORAGE_TRAINER": "off",
            "FORAGE_SNAPSHOT_EVERY_EVENTS": "400",
            "FORAGE_EXPIRY_SECONDS": "0.5",
            **settings,
        }
        super().__init__(name, folder, ["serve", "--port", str(port)], **settings)

    def start(self) -> None:
        self._was_ready = False
        super().start()

    def on_end(self, status: int) -> None:
        super().on_end(status)
        self.deserted += self._was_ready

    def terminate(self) -> bool:
        """The same, where this very process has been ready: before, it may not know the signal."""
        return self._was_ready and super().terminate()

    async def positions(self, client: httpx.AsyncClient) -> dict[str, int] | None:
        """Where each experiment stands, or None where the replica is not ready."""
        asked = self._process
        try:
            answer = await client.get(f"{self.url}/readyz")
        except httpx.TransportError:
            return None
        if answer.status_code != 200 or self._process is not asked:  # it was killed meanwhile
            return None
        self._was_ready = True
        positions: dict[str, int] = answer.json()["positions"]
        return positions

    async def ready(self, client: httpx.AsyncClient, within_s: float = READY_S) -> None:
        """Raises NotReady."""
        deadline = monotonic() + within_s
        while True:
            if await self.positions(client) is not None:
                return
            if monotonic() > deadline:
                last = self.log.read_text().rstrip().rpartition("\n")[2]
                raise NotReady(f"{self.name} was not ready within {within_s:.0f} s: {last}")
            await asyncio.sleep(0.05)


def _is_dead(pid: int) -> bool:
    """Say whether a process has closed its sockets: it is gone, or waits for its parent alone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def kill_one(pid: int) -> None:
    """kill -9 of a process that another one started; wait until its sockets are closed."""
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240, PTH110  # nothing tells
        await asyncio.sleep(0.001)


def listeners(port: int) -> int:
    """Return how many sockets listen on a port of this host."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(
        line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines
    )


def trainer(folder: Path, store: str, url: str) -> Process:
    """Return `forage train --follow`: a separate process, since it may outlive the service."""
    return Process("trainer", folder, ["train", "--follow", "--store", store, "--url", url])
