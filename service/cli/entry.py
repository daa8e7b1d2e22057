"""The program `forage`, from its first line to its last."""

import signal
import sys

from service.cli.interrupts import INTERRUPTED, at_once


def run() -> None:
    """Run the command that was asked for, and end with its status."""
    with at_once():
        from service.cli.program import main
    status = INTERRUPTED
    try:
        status = main()
    except KeyboardInterrupt:  # of a command that has nothing to put in order
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has ended, and only takes itself down
    sys.exit(status)
