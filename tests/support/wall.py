"""A wall clock that a test puts forward, for a service in its process."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from tests.support.service import Wire


class Wall:
    """Unix seconds. Nothing is due by it but where it is put forward: real seconds are few."""

    def __init__(self) -> None:
        self._real, self._ahead_s = time.time, 0.0

    def __call__(self) -> float:
        return self._real() + self._ahead_s

    def skip(self, seconds: float) -> None:
        self._ahead_s += seconds

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
        yield wall
