"""Virtual time: an event loop that never waits, and wall clocks that go as a rule says."""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from random import Random
from types import ModuleType
from typing import Any, Protocol
from unittest import mock

import service.log.clock
import service.log.presence
import service.log.replay
import service.log.writer
import service.security.token
import service.serving.engine
import service.serving.recorder
import service.serving.traffic

EPOCH = 1_700_000_000.0


class Owner(Protocol):
    """Of tasks: one simulated process. skew: seconds that its wall clock is ahead."""

    skew: float

    def own(self, task: asyncio.Task[Any]) -> None: ...


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class Stuck(AssertionError):
    """Someone waits, and nothing is left that could wake them."""


class _Idle:
    """Stands where a loop waits for sockets: the time passes at once."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("a task waits for what will never happen")
        self._loop.now += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Time moves only where nothing is left to do, to the next timer: runs of one seed are one.

    Tasks belong to the process in whose context they were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Idle(self)
        self.set_task_factory(_owned)

    def time(self) -> float:
        return self.now

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def _owned(
    loop: asyncio.AbstractEventLoop,
    work: Generator[Any, None, Any],
    context: Context | None = None,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    owner = context.get(OWNER) if context is not None else OWNER.get()
    if owner is not None:
        owner.own(task)
    return task


class Clock:
    """Wall clocks over a loop: they jump together, and a process's own may be wrong."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self.offset = loop, EPOCH

    def true(self) -> float:
        return self._loop.now + self.offset

    def time(self) -> float:
        owner = OWNER.get()
        return self.true() + (owner.skew if owner is not None else 0.0)


@contextmanager
def injected(clock: Clock, rng: Random) -> Iterator[None]:
    """The service's clocks and its chance are ours inside.

    Folding looks at its stopwatch to yield: here it yields where chance has it.
    """
    passed = 0.0

    def stopwatch() -> float:
        nonlocal passed
        passed += rng.choice((0.0, 0.0, 0.0, 0.003))
        return passed

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        """Threads know nothing of our time."""
        return work(*arguments)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(asyncio, "to_thread", at_once))
        for module in _with_clocks():
            stack.enter_context(mock.patch.object(module, "time", clock.time))
        stack.enter_context(mock.patch.object(service.log.clock, "steady", clock.true))
        for module in (service.log.replay, service.log.writer):
            stack.enter_context(mock.patch.object(module, "perf_counter", stopwatch))
        for module in (
            service.serving.engine,
            service.serving.recorder,
            service.serving.traffic,
            service.log.presence,
        ):
            stack.enter_context(mock.patch.object(module, "_entropy", rng))
        process_ids = mock.Mock(urandom=rng.randbytes)
        stack.enter_context(mock.patch.object(service.security.token, "os", process_ids))
        yield


def _with_clocks() -> list[ModuleType]:
    """Modules of the service that took `time` by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("service.")]
    return [module for module in modules if getattr(module, "time", None) is time.time]
