"""Virtual time: an event loop that never waits, wall clocks that go as a rule says, and steady ones
that know how much time has passed."""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from math import inf
from random import Random
from types import ModuleType
from typing import Any, Protocol
from unittest import mock

import service.log.clock
import service.log.presence
import service.log.replay
import service.log.writer
import service.maintenance.retention
import service.security.token
import service.serving.engine
import service.serving.recorder
import service.serving.traffic

EPOCH = 1_700_000_000.0

MOST_SKEW_S = 60.0
"""A shared store refuses processes whose clock is wrong by more."""

MARGIN_S = 300.0
"""Marks are forgotten so long after log time has passed their `keep_until`."""


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
    """Wall clocks over a loop: they jump together, and a process's own may be wrong.

    shared   the store refuses processes whose clock is wrong by more than MOST_SKEW_S
    """

    def __init__(self, loop: VirtualLoop, *, shared: bool) -> None:
        self._loop, self.offset = loop, EPOCH
        self._most_s, self._ahead_s = MOST_SKEW_S if shared else inf, 0.0

    def true(self) -> float:
        return self._loop.now + self.offset

    def latest(self) -> float:
        """By the clock that was ahead most of those that may write."""
        return self.true() + self._ahead_s

    def time(self) -> float:
        skew = skew_of_owner()
        if skew <= self._most_s:
            self._ahead_s = max(self._ahead_s, skew)
        return self.true() + skew


def skew_of_owner() -> float:
    """Of the process that asks."""
    owner = OWNER.get()
    return 0.0 if owner is None else owner.skew


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
        stack.enter_context(mock.patch.object(service.maintenance.retention, "MARGIN_S", MARGIN_S))
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
