"""One serving process, put together as in service: it is started, asked, stopped and killed."""

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest import mock

import service.app
from service.app import open_services
from service.definition.experiment import Definition
from service.errors import StoreUnavailable
from service.http.services import Services
from service.settings import Settings
from tests.simulation.clock import OWNER, Clock
from tests.simulation.disk import Disk, Line

T = TypeVar("T")

NAME = "shop"
SETTINGS = Settings(
    store="memory://",
    experiments=[Path("shop.toml")],
    token_keys=[bytes(32)],
    snapshot_every_events=9,
    expiry_seconds=1.0,
    buffer_bytes=3_400,
    retention_days=100.0 / 86_400.0,
    trim_seconds=20.0,
)
AGAIN_S = 0.2


class Process:
    """One life of it: what it knew goes with it, and another finds what the disk has kept.

    skew   seconds that its wall clock is ahead
    """

    def __init__(
        self, disk: Disk, definition: Definition, clock: Clock, rng: Random, skew: float = 0.0
    ) -> None:
        """In a context of its own; where the store cannot be opened, again and again."""
        self.definition, self.line = definition, Line(disk, rng)
        self._clock, self._rng = clock, rng
        self.skew, self.dead = skew, False
        self.services: Services | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = asyncio.Event()
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)
        self._main = self.run(self._serve())

    @property
    def parts(self) -> Services:
        """Of a process that serves."""
        assert self.services is not None
        return self.services

    def own(self, task: asyncio.Task[Any]) -> None:
        self._tasks = [task, *(one for one in self._tasks if not one.done())]

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, context=self._context)

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                async with open_services(
                    SETTINGS, self.line, clock=self._clock, rng=self._rng
                ) as self.services:
                    await self._stopping.wait()
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_S)
            finally:
                self.services = None

    def crash(self) -> None:
        """All that runs ends, and nothing more of it gets out."""
        self.dead, self.services = True, None
        self.line.cut()
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """In order: what waits is written, and a last snapshot."""
        self._stopping.set()
        await asyncio.wait([self._main])
        self.crash()


@contextmanager
def simulated_definition() -> Iterator[None]:
    """In place of the file of an experiment."""

    def load(path: Path) -> tuple[str, Definition]:
        return NAME, _owner().definition

    with mock.patch.object(service.app, "load_definition", load):
        yield


def _owner() -> Process:
    owner = OWNER.get()
    assert isinstance(owner, Process)
    return owner


class Bugs(logging.Handler):
    """What a living process could only log as a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[BaseException] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("service")
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.propagate = before
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        owner = OWNER.get()
        fault = record.exc_info[1] if record.exc_info else None
        if fault and not isinstance(fault, StoreUnavailable) and not (owner and owner.dead):
            self.found.append(fault)
