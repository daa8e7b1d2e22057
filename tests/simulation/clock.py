"""The clocks of simulated processes: they jump together, and a process's own may be wrong."""

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from math import inf
from random import Random
from typing import Any, Protocol
from unittest import mock

import service.manage.retention
from service.log.replay import Pace
from service.state import version_gate
from tests.support.clock import EPOCH, VirtualClock, VirtualLoop

MOST_SKEW_S = 60.0
"""A shared store refuses processes whose clock is wrong by more."""

MARGIN_S = 300.0
"""Marks are forgotten so long after log time has passed their `keep_until`."""

LAST_LOOK = 3
"""Settlements after which the gate of a version ends."""


class Owner(Protocol):
    """Of tasks: one simulated process. skew: seconds that its wall clock is ahead."""

    skew: float

    def own(self, task: asyncio.Task[Any]) -> None: ...


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


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


class Clock(VirtualClock):
    """Clocks of hosts: they go and jump together, and the wall clock of one may be wrong.

    shared   the store refuses processes whose clock is wrong by more than MOST_SKEW_S
    """

    def __init__(self, *, shared: bool) -> None:
        super().__init__(up_s=0.0)
        self._most_s, self._ahead_s = MOST_SKEW_S if shared else inf, 0.0

    def true(self) -> float:
        """Unix seconds by a clock that is right."""
        return EPOCH + self.up_s + self._passed_s

    def latest(self) -> float:
        """By the clock that was ahead most of those that may write."""
        return self.true() + self._ahead_s

    def time(self) -> float:
        skew = skew_of_owner()
        if skew <= self._most_s:
            self._ahead_s = max(self._ahead_s, skew)
        return self.true() + skew

    def monotonic(self) -> float:
        return self.true()

    def loop(self) -> VirtualLoop:
        """Its tasks belong to the process in whose context they were made."""
        loop = super().loop()
        loop.set_task_factory(_owned)
        return loop


def skew_of_owner() -> float:
    """Of the process that asks."""
    owner = OWNER.get()
    return 0.0 if owner is None else owner.skew


@contextmanager
def injected(rng: Random) -> Iterator[None]:
    """Long work makes way for other tasks by chance, marks are forgotten and gates end sooner."""
    passed = 0.0

    def stopwatch() -> float:
        nonlocal passed
        passed += rng.choice((0.0, 0.0, 0.0, 0.003))
        return passed

    with (
        mock.patch.object(Pace, "stopwatch", staticmethod(stopwatch)),
        mock.patch.object(service.manage.retention, "MARGIN_S", MARGIN_S),
        mock.patch.object(version_gate, "LAST_LOOK", LAST_LOOK),
    ):
        yield
