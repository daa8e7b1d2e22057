"""What a command is, and what commands share: the event loop, an interrupt, a line of progress."""

import asyncio
import contextlib
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `forage`.

    add_options   an option named as a setting overrides it
    run           of the settings and of all options by name: the exit status. Raises ForageError
                  with what is to be said.
    example       command lines for the help, with a comment where one is needed
    group         the heading that it stands under in `forage --help`
    stores        it looks into the store that --store names
    """

    help: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Settings, dict[str, Any]], int]
    description: str | None = None
    epilog: str | None = None
    example: str = ""
    group: str = "Operate"
    stores: bool = True


def run_until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Its status; 0 where an interrupt ended it in order. Further ones change nothing."""
    import uvloop

    async def until_stopped() -> int:
        working = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: working.cancelling() or working.cancel())
        with contextlib.suppress(asyncio.CancelledError):
            return await working
        return 0

    with contextlib.suppress(KeyboardInterrupt):  # just before the loop listens, or after it ended
        return uvloop.run(until_stopped())
    return 0


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None] | None]:
    """Where to say how far it is: a line in place of the one before, on a terminal; else None."""
    say = _say if sys.stderr.isatty() else None
    try:
        yield say
    finally:
        if say:
            say("")


def _say(line: str) -> None:
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
