"""A command and what commands share: the event loop, a line of progress, results as JSON."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from typer.core import TyperCommand

from service.cli.help import Leaf
from service.cli.interrupts import INTERRUPTED
from service.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Command:
    """One command of `forage`.

    run        takes Settings and the options of the command, and returns the exit status; its
               docstring is the text of the help. Raises ForageError with a message for the user
    summary    a line for the list of commands
    example    command lines for the help, with a comment where one is needed
    settings   settings that options of the command override
    actions    the commands below this one: `run` is then only their common help
    """

    run: Callable[..., int]
    summary: str
    epilog: str = ""
    example: str = ""
    settings: tuple[str, ...] = ("store",)
    actions: Mapping[str, "Command"] = field(default_factory=dict)
    parser: type[TyperCommand] = Leaf


def run_until_stopped(work: Coroutine[object, object, int]) -> int:
    """Its status; 0 where an interrupt ended it in order. A second one ends it at once."""

    async def until_stopped() -> int:
        working = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            if working.cancelling():
                print("forage: interrupted again: it ends at once", file=sys.stderr, flush=True)
                os._exit(INTERRUPTED)
            working.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        with contextlib.suppress(asyncio.CancelledError):
            return await working
        return 0

    with contextlib.suppress(KeyboardInterrupt):  # just before the loop listens, or after it ended
        return uvloop.run(until_stopped())
    return 0


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None] | None]:
    """Takes lines of progress, each in place of the one before, on a terminal; else None."""
    say = _say if sys.stderr.isatty() else None
    try:
        yield say
    finally:
        if say:
            say("")


def _say(line: str) -> None:
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def write_json(path: Path | None, content: object) -> None:
    """Write it to the file that the user named, if any."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from fault
