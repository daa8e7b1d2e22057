"""What commands share: their settings, the event loop, a line of progress, results as JSON."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import uvloop

from service.cli.entry import INTERRUPTED, dying_at_interrupts
from service.errors import ConfigurationError
from service.settings import Settings


def read_settings(**options: object) -> Settings:
    """Read settings from options (None: left out) and environment, and configure the log by them.

    Raises ConfigurationError.
    """
    with dying_at_interrupts():
        from service.telemetry.logs import log_to_stderr

    given = {name: value for name, value in options.items() if value is not None}
    settings = Settings.read(given)
    log_to_stderr(settings.log_level, settings.log_format, settings.token_keys)
    for warning in settings.ignored(os.environ):
        logging.getLogger(__name__).warning("%s", warning)
    return settings


def run_until_stopped(work: Coroutine[object, object, int]) -> int:
    """Run work to its end and return its status: 0 where an interrupt cancelled it. A second
    interrupt ends the process at once."""

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
    """Yield a function that shows a line of progress in place of the last one; None where stderr
    is no terminal."""
    say = _say if sys.stderr.isatty() else None
    try:
        yield say
    finally:
        if say:
            say("")


def _say(line: str) -> None:
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def write_json(path: Path | None, content: object) -> None:
    """Write a result to the file that the user named, if any. Raises ConfigurationError."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from fault
