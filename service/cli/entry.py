"""The script `forage`: an interrupt (Ctrl-C) ends it without a traceback, at any moment."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED = 130
"""Exit status of a command that an interrupt ended before it was finished."""


def run() -> None:
    """Run the command of the command line and exit with its status."""
    with dying_at_interrupts():
        from service.cli.program import main
    status = INTERRUPTED
    try:
        status = main()
    except KeyboardInterrupt:  # outside of a command: there is nothing to clean up
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python only shuts down from here on
    sys.exit(status)


@contextlib.contextmanager
def dying_at_interrupts() -> Iterator[None]:
    """Let an interrupt kill the process, as the system does by default, during long imports.

    Python's own handler would raise KeyboardInterrupt in the middle of an import, which some
    libraries report as an error of their own. Where interrupts are ignored, as a shell's background
    jobs do, they stay ignored.
    """
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not by_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
