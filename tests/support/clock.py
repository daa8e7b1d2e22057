"""Virtual time: an event loop that never waits, and the clocks of a service that runs on it."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from unittest import mock

from service.clock import Clock
from service.log.replay import Pace

T = TypeVar("T")

EPOCH = 1_800_000_000.0
"""Unix seconds at which virtual time begins: 2027-01-15 08:00 UTC."""

READING_S = 1e-6
"""Seconds between two readings of a virtual clock."""


_generators = Counter[str]()


def _next_rng() -> Random:
    """Of its own for each clock of each test: two services never draw the same ids."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    _generators[test] += 1
    return Random(f"{test} {_generators[test]}")


class Stuck(AssertionError):
    """A task waits, and nothing is left that could wake it."""


class FixedClock(Clock):
    """A monotonic clock that stands still unless a test sets it."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def monotonic(self) -> float:
        return self.at


class SetClock(Clock):
    """The clocks of the host, which a test puts forward without waking anybody.

    rng   of the services that go by it: the same in each run of a test
    """

    def __init__(self) -> None:
        self.rng = _next_rng()
        self._passed_s = self._jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self._passed_s + self._jumped_s

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_s

    def skip(self, seconds: float) -> None:
        """So much time passes."""
        self._passed_s += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock, and no time passes."""
        self._jumped_s += seconds


class VirtualClock(SetClock):
    """Clocks that go as virtual loops do: one moves its time to the next timer, at once.

    up_s   seconds since the host was started, by the loops
    """

    def __init__(self, up_s: float = 1_000.0) -> None:
        super().__init__()
        self.up_s = up_s

    def time(self) -> float:
        return EPOCH + self.monotonic() + self._jumped_s

    def monotonic(self) -> float:
        """As with real clocks, each reading is later than the one before."""
        self._passed_s += READING_S
        return self.up_s + self._passed_s

    def cpu(self) -> float:
        return self.monotonic()

    def loop(self) -> "VirtualLoop":
        return VirtualLoop(self)


class _Idle:
    """In place of a selector: where a loop would wait for sockets, its time passes at once."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("a task waits for what will never happen")
        self._clock.up_s += timeout
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Time moves only where nothing is left to do, to the next timer. Work for threads is done at
    once, in this thread. So the order of all that happens depends on the program alone."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._selector = _Idle(clock)
        self._clock_resolution = READING_S  # more than is lost in rounding, after decades too

    def time(self) -> float:
        return self.clock.up_s

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as fault:
            done.set_exception(fault)
        return done

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


@contextmanager
def unhurried() -> Iterator[None]:
    """Long work never makes way for other tasks: its slices depend on the speed of the machine.
    Work that Starlette gives to threads is done at once: they cannot wake a virtual loop."""
    slices = mock.patch.object(Pace, "stopwatch", staticmethod(lambda: 0.0))
    with slices, mock.patch("anyio.to_thread.run_sync", _run_inline):
        yield


async def _run_inline(work: Callable[..., T], *args: Any, **_: Any) -> T:
    return work(*args)


def run_virtual(work: Coroutine[Any, Any, T], clock: VirtualClock | None = None) -> T:
    """As asyncio.run, on a virtual loop."""
    loop = (clock or VirtualClock()).loop
    with unhurried(), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


def clock_of_loop() -> VirtualClock:
    """That of the virtual loop which runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.clock
