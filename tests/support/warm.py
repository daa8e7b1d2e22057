"""`forage` in processes that have imported the service already: forks of one that did so once.

Python and the service take a second to start, a fork takes a few milliseconds. What is tested of
such a process (signals, locks, sockets, its exit status) is the same. Tests of the start itself and
of a process's memory start Python.
"""

import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from tests.support.process import unmeasured

_CONTEXT = multiprocessing.get_context("forkserver")
_IMPORTED = ["tests.support.warm", "tests.support.warmed"]


class Warm:
    """One process; its methods are those of subprocess.Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path | None,
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
        files: int | None = None,
    ) -> None:
        """output, errors: what is written to them; errors go where the output goes if left out.
        files: that it may open."""
        _CONTEXT.set_forkserver_preload(_IMPORTED)
        with mock.patch.dict(os.environ, unmeasured(os.environ), clear=True):
            forkserver.ensure_running()
        given = (list(arguments), folder or Path.cwd(), dict(environment), output, errors, files)
        self._process = _CONTEXT.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forage", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    output: Path,
    errors: Path | None,
    files: int | None,
) -> None:
    """In the fork."""
    from service.cli.program import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for number, path in ((1, output), (2, errors or output)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.exit(main(arguments))


def stop() -> None:
    """End the process that forks, so that its time counts as that of the tests."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
