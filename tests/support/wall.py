"""Clocks that a test puts forward, for a service in its process."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import service.log.clock
from tests.support.service import Wire


class Wall:
    """Unix seconds. Nothing is due by it but where it is put forward: real seconds are few.

    jump   the wall clock alone: somebody set it, and no time has passed
    """

    def __init__(self) -> None:
        self._real, self._steady = time.time, service.log.clock.steady
        self._passed_s = self._jumped_s = 0.0

    def __call__(self) -> float:
        return self._real() + self._passed_s + self._jumped_s

    def steady(self) -> float:
        return self._steady() + self._passed_s

    def skip(self, seconds: float) -> None:
        self._passed_s += seconds

    def jump(self, seconds: float) -> None:
        self._jumped_s += seconds

    def pass_by(self, wire: Wire, seconds: float) -> None:
        """And the service looks for rewards that did not come."""
        self.skip(seconds)
        while wire.run(wire.services.settlements.expire_due()):
            pass


@contextmanager
def wall_clock() -> Iterator[Wall]:
    """In the block, the modules of the service take their time from it."""
    wall, real = Wall(), time.time
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("service.") and getattr(module, "time", None) is real:
                stack.enter_context(mock.patch.object(module, "time", wall))
        stack.enter_context(mock.patch.object(service.log.clock, "steady", wall.steady))
        yield wall
