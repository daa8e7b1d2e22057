"""What an interrupt (Ctrl-C) does to a process of `forage`: it ends it, without a traceback."""

import contextlib
import signal
import threading
from collections.abc import Iterator

INTERRUPTED = 130
"""Status of a command that was not finished: it has said nothing."""


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """In the block an interrupt ends the process as it would any program: for imports, which take
    seconds and have nothing to put in order. Where interrupts are ignored, as in what a shell runs
    in the background, they stay so."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
