"""`forage` as a user runs it: its exit status, what it says, and what it does to its folder.

`forage` runs a command in this process, `started` in one of its own, `serving` serves in one. Those
are forks of a process that has imported the service (tests/support/warm.py), unless a test asks for
a `cold` start.
"""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import httpx

from service.cli.program import main
from tests.support.process import as_it_was, unmeasured
from tests.support.service import PATIENCE_S
from tests.support.warm import Warm

START_S = 60.0
STOP_S = 30.0

Ended = subprocess.CompletedProcess[str]


def environment(**settings: str) -> dict[str, str]:
    """The environment of these tests, with these settings and no others; not measured, as most of
    these processes are killed, and tests/recovery has one that is stopped."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORAGE_")}
    return {**unmeasured(kept), **settings}


def forage(*arguments: str, folder: Path | None = None, **settings: str) -> Ended:
    """Run a command to its end, in this process, which is then as it was."""
    told, said = io.StringIO(), io.StringIO()
    with (
        as_it_was(),
        mock.patch.dict(os.environ, environment(**settings), clear=True),
        chdir(folder or Path.cwd()),
        redirect_stdout(told),
        redirect_stderr(said),
    ):
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, told.getvalue(), said.getvalue())


def started(*arguments: str, folder: Path | None = None, **settings: str) -> Ended:
    """Run a command to its end, in a process of its own."""
    with TemporaryDirectory() as written:
        told, said = Path(written) / "stdout", Path(written) / "stderr"
        process = Warm(arguments, folder, environment(**settings), told, said)
        try:
            status = process.wait(START_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, status, told.read_text(), said.read_text())


def expect_refusal(ended: subprocess.CompletedProcess[str]) -> str:
    """It ended with status 1 and one line that says why; the line."""
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith("{")]  # the log
    assert line.startswith("forage: ")
    return line


class Serving:
    """A running `forage serve`. log: what it has written so far is read with `said`."""

    def __init__(self, process: subprocess.Popen[bytes] | Warm, log: Path) -> None:
        self._process, self._log = process, log
        self.pid = process.pid
        self.url = ""

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"serving .* on (http://\S+)", self.said)):
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        self.url = found[1]
        self.client = httpx.Client(base_url=self.url, timeout=START_S, trust_env=False)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(STOP_S)

    def stop(self) -> int:
        """As service managers do it; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        if self.url:
            self.client.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        return self.client.post(path, json=body).raise_for_status().json()

    def visit(self, policy: str = "linucb", reward: float = 1.0) -> None:
        """A decision of the Zooplus example, and its reward."""
        question = {"policy": policy, "context": {"persona": "cat_connoisseur"}}
        decision = self.post("/select", question)
        self.post("/reward", {"decision_id": decision["decision_id"], "reward": reward})

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@contextmanager
def serving(
    folder: Path, *options: str, files: int | None = None, cold: bool = False, **settings: str
) -> Iterator[Serving]:
    """`forage serve` in a folder, on a free port, without a trainer. files: that it may open."""
    log = folder / "service.log"
    log.write_bytes(b"")
    command = ["serve", "--port", "0", "--trainer", "off", *options]
    given = environment(**{"FORAGE_SELECT_LOG_SECONDS": f"{PATIENCE_S}", **settings})
    process: subprocess.Popen[bytes] | Warm
    if cold:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "service", *command],
                cwd=folder,
                env=given,
                stdout=output,
                stderr=output,
            )
    else:
        process = Warm(command, folder, given, log, files=files)
    running = Serving(process, log)
    try:
        running.wait_until_it_serves()
        yield running
    finally:
        running.close()
