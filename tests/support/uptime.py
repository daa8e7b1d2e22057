"""Clocks of a host that was booted just now, a moment ago or decades ago: where such a clock begins
means nothing, and 0 is a time like any other."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

UPTIMES_S = (0.0, 3.0, 1e9)


@contextmanager
def up_for(seconds: float) -> Iterator[None]:
    """In the block, the steady clocks of the service, of the tests and of event loops go as if the
    host had been up for so long when it began."""
    with ExitStack() as stack:
        for name in ("monotonic", "perf_counter"):
            real = getattr(time, name)
            ahead = seconds - real()

            def shifted(real=real, ahead=ahead):  # type: ignore[no-untyped-def]
                return real() + ahead

            stack.enter_context(mock.patch.object(time, name, shifted))  # event loops take it here
            for found, module in list(sys.modules.items()):
                ours = found.startswith(("service.", "tests."))
                if ours and getattr(module, name, None) is real:
                    stack.enter_context(mock.patch.object(module, name, shifted))
        yield
