"""A service of several workers: the process that starts them, watches them and stops them.

It serves nothing. Each worker is a process with a listening socket of its own on the one port, over
which Linux shares new connections out: one socket for all would give most of them to one worker.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path

from service.analysis.checkpoints import temporary_folder
from service.errors import ConfigurationError
from service.server.line import CountsAsked, CountsTold, Line, Reload, ServesNow, StartWork, Stop
from service.server.serving import bind, check_start, serve_alone, tell_of_serving
from service.server.signals import read_again
from service.server.training import keep_training, trainer_key, trains
from service.settings import Settings
from service.telemetry.metrics import left_of
from service.telemetry.siblings import Subject

logger = logging.getLogger("forage")

STEADY_SECONDS = 10.0
"""Life, in seconds, after which a worker that dies is replaced at once."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""Bounds, in seconds, of the pause before a worker that died earlier is replaced. It doubles with
each that does."""

WORKER_SECONDS = 1.0
"""Longest wait, in seconds, for what a worker has counted: one that hangs delays the others."""

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processor time that a container may take in each period, and the period."""


def worker_count(settings: Settings) -> int:
    """Return how many workers the settings ask for. Raises ConfigurationError where this host or
    the store takes one alone."""
    if settings.workers == 1:
        return 1
    fault = None
    if settings.store.startswith("memory"):
        fault = "no other process can read a memory:// store"
    elif sys.platform != "linux":
        fault = "only Linux shares the connections to a port out over processes"
    if settings.workers == "auto":
        return 1 if fault else usable_cores()
    if fault:
        raise ConfigurationError(f"FORAGE_WORKERS: {fault}: leave it at 1")
    return settings.workers


def usable_cores(quota: Path = QUOTA) -> int:
    """Return the cores that this process may use, of the host or of its container."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        most, period = quota.read_text().split()
        if most != "max":
            cores = min(cores, int(most) // int(period))
    return max(cores, 1)


class Worker:
    """A worker as its service sees it. answers: its last ones."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line) -> None:
        self.process, self.line = process, line
        self.serves = False
        self.answers = dict[Subject, bytes]()

    def kill(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            self.process.send_signal(number)

    def stop(self) -> None:
        """Tell it to stop in order."""
        if self.serves:
            self.line.send(Stop())  # where it got the signal, too, a second would end it
        else:
            self.kill(signal.SIGTERM)

    async def ask(self, about: Subject) -> None:
        """Ask it what it counted; one that hangs, or has ended, has its last answer."""
        with suppress(TimeoutError):
            (self.answers[about],) = await self.line.ask(about, WORKER_SECONDS)


class WorkerPool:
    """The workers of a service.

    _left   what workers that have ended had counted
    """

    def __init__(
        self, settings: Settings, count: int, checkpoints: str | None, key: str = ""
    ) -> None:
        self._settings, self._count = settings, count
        self._checkpoints, self._key = checkpoints, key
        self._workers: list[Worker] = []
        self._served = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._left = dict[Subject, bytes]()
        self._status = 0

    async def run(self) -> int:
        """Run workers until a signal stops them. Return the exit status of the service."""
        self._listen()
        first = asyncio.create_task(self._keep(0))
        training = asyncio.create_task(self._train())
        served = asyncio.create_task(self._served.wait())
        await asyncio.wait({first, served}, return_when=asyncio.FIRST_COMPLETED)
        served.cancel()
        others = range(1, self._count) if self._served.is_set() else ()
        await asyncio.gather(first, *(self._keep(number) for number in others))
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        return self._status

    # -- signals -------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Install the handlers of signals, as `Signals` does in a service of one process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, partial(self.stop, number))
        on_terminal = sys.stderr.isatty()
        hung_up = partial(self.stop, signal.SIGHUP) if on_terminal else self.reload
        loop.add_signal_handler(signal.SIGHUP, hung_up)

    def stop(self, number: int) -> None:
        """Stop all workers in order; at a second signal at once."""
        if self._stopping.is_set():
            for worker in self._workers:
                worker.kill(signal.SIGKILL)
            logger.error("stopped again: it ends at once, and requests under way are cut off")
            os._exit(128 + number)
        logger.info("stopping %d workers; another signal ends them at once", len(self._workers))
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    def reload(self) -> None:
        """Read settings again, and let all workers do so."""
        if (new := read_again(self._settings)) is not None:
            self._settings = new
            for worker in self._workers:
                worker.line.send(Reload())

    # -- workers -------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Run a worker, and another where it dies, until the service stops."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._run_one()
            if self._stopping.is_set():
                return
            if not self._served.is_set():  # it has said why
                self._status = max(status, 1)
                return
            steady = loop.time() - began >= STEADY_SECONDS
            pause = (
                0.0 if steady else min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            )
            logger.error(
                "worker %d ended with status %d: another starts in %g s", number + 1, status, pause
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run_one(self) -> int:
        """Run a worker to its end. Return its exit status, negative for a signal."""
        ours, its = socket.socketpair()
        command = [sys.executable, "-m", "service", "serve", "--worker", str(its.fileno())]
        with its:
            # A session of its own: an interrupt at the terminal is for this process alone.
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[its.fileno()], start_new_session=True
            )
        worker = Worker(process, await Line.over(ours))
        early = not self._workers  # else it would refuse what another one answers
        self._workers.append(worker)
        worker.line.send(
            StartWork.of(
                self._settings,
                count=self._count,
                early=early,
                trainer_key=self._key,
                checkpoints=self._checkpoints,
            )
        )
        if self._stopping.is_set():  # since it was started
            worker.stop()
        listening = asyncio.create_task(self._hear(worker))
        try:
            return await process.wait()
        finally:
            self._workers.remove(worker)
            for about, answer in worker.answers.items():
                known = [self._left[about]] if about in self._left else []
                self._left[about] = left_of(about, [*known, answer])
            listening.cancel()
            worker.line.close()

    async def _hear(self, worker: Worker) -> None:
        async for message in worker.line.messages():
            match message:
                case ServesNow(experiments):
                    worker.serves = True
                    if not self._served.is_set():
                        more = f", {self._count} workers"
                        tell_of_serving(self._settings, self._settings.port, experiments, more)
                    self._served.set()
                case CountsAsked(number, about):
                    self._spawn(self._answer(worker, number, about))
                case _:
                    raise TypeError(f"a worker sends no {type(message).__name__}")

    async def _answer(self, worker: Worker, number: int, about: Subject) -> None:
        """Tell a worker what all have counted."""
        await asyncio.gather(*(each.ask(about) for each in self._workers if each.serves))
        found = [each.answers[about] for each in self._workers if about in each.answers]
        if about in self._left:
            found.append(self._left[about])
        worker.line.send(CountsTold(number, found))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _train(self) -> None:
        """Run a trainer from when a worker serves, until this is cancelled."""
        await self._served.wait()
        if trains(self._settings):
            await keep_training(self._settings, self._settings.port, self._key)


async def serve_until_stopped(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, in this process or in workers; then finish pending requests
    and save the state. Return the exit status."""
    check_start(settings)
    count = worker_count(settings)
    if count == 1:
        await serve_alone(settings if settings.workers == 1 else settings.fixed(workers=1))
        return 0
    bind(settings, shared=False).close()  # sockets that share a port would not find it in use
    with (
        bind(settings, shared=True) as reserved,
        temporary_folder(settings.store) as checkpoints,
    ):
        known = settings.fixed(workers=count, port=reserved.getsockname()[1])
        return await WorkerPool(known, count, checkpoints, trainer_key(settings)).run()
