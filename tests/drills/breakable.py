"""`forage` with a head that breaks at SIGUSR1, as a fault of memory breaks one.

The process has no other way in: what the wire and the log take cannot overflow a head.
"""

import gc
import signal
import sys

from service.cli.program import main
from service.state.learner import Learner
from tests.support.broken import break_head

FRAGILE = "fragile"
"""The policy whose head breaks."""


def break_heads(*_: object) -> None:
    gc.unfreeze()  # a service freezes what it holds, and frozen objects are not listed
    for each in gc.get_objects():
        if isinstance(each, Learner) and each.name == FRAGILE:
            break_head(each)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, break_heads)
    sys.exit(main(sys.argv[1:]))
