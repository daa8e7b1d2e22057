"""An interrupt at a terminal goes to all processes of a command: each ends, without a traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.forage import START_S, STOP_S, environment

pytestmark = pytest.mark.process

ENDED = (0, -signal.SIGINT)
"""In order, or at once where there was nothing to put in order: 0 and 130 to a shell."""


def interruptible() -> None:
    """What a shell runs in the background ignores interrupts, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Running:
    """A command in a process group of its own, as a shell makes one."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def children(self) -> list[int]:
        pid = self._process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not true():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.005)

    def wait_until_it_imports(self) -> None:
        """Before its first line Python itself starts, and answers an interrupt in its own way."""
        maps = Path(f"/proc/{self._process.pid}/maps")
        self.wait_until(lambda: "pydantic_core" in maps.read_text())

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        return self._process.wait(STOP_S)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Running]:
    log = folder / "said.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "service", *arguments],
            cwd=folder,
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=interruptible,
        )
    try:
        yield Running(process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


AFTER_S = [0.2, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.0, 0.5, 1.0, 1.5))]


@pytest.mark.parametrize("after_s", AFTER_S)
def test_a_service_that_starts_is_interrupted(tmp_path: Path, after_s: float) -> None:
    with running(tmp_path, "serve", "--port", "0", "--trainer", "on") as service:
        service.wait_until_it_imports()
        time.sleep(after_s)
        service.interrupt()
        assert service.end() in ENDED
        assert "Traceback" not in service.said


@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_trainer_that_starts_is_interrupted_with_its_service(
    tmp_path: Path, after_s: float
) -> None:
    with running(tmp_path, "serve", "--port", "0", "--trainer", "on") as service:
        service.wait_until(lambda: service.children != [])
        [trainer] = service.children
        time.sleep(after_s)
        service.interrupt()
        assert service.end() == 0
        assert "Traceback" not in service.said
        assert not Path(f"/proc/{trainer}").exists()


@pytest.mark.parametrize("command", [("train", "--follow"), ("audit",)])
def test_a_command_that_starts_is_interrupted(tmp_path: Path, command: tuple[str, ...]) -> None:
    with running(tmp_path, *command, "--store", f"sqlite:///{tmp_path}/none.db") as one:
        one.wait_until_it_imports()
        one.interrupt()
        assert one.end() in (*ENDED, 130)
        assert "Traceback" not in one.said
