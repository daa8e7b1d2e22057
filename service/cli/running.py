"""What a command is, and what commands share: the event loop, an interrupt, a line of progress."""

import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from service.cli.interrupts import at_once

if TYPE_CHECKING:
    from typer.core import TyperCommand


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `forage`.

    help       a line for the list of commands
    run        of the settings and of its options, which are its parameters: the exit status. Raises
               ForageError with what is to be said. None: `actions` run
    settings   that options of the command override
    example    command lines for the help, with a comment where one is needed
    group      the heading that it stands under in `forage --help`
    parser     where Typer's own reading of the options is not enough
    """

    help: str
    run: Callable[..., int] | None
    description: str = ""
    epilog: str = ""
    example: str = ""
    group: str = ""
    settings: tuple[str, ...] = ("store",)
    actions: "Mapping[str, Command]" = field(default_factory=dict)
    parser: type["TyperCommand"] | None = None


def run_until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Its status; 0 where an interrupt ended it in order. Further ones change nothing."""
    with at_once():
        import asyncio

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
