"""What a process keeps for all of its code, and what is told to the processes that tests start."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def put_back() -> Iterator[None]:
    """After the block, what a command of `forage` sets for its process is as it was."""
    interval = sys.getswitchinterval()
    loggers = [logging.getLogger(name) for name in (None, "httpx")]
    levels = [logger.level for logger in loggers]
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def as_it_was() -> Iterator[None]:
    """A block in which nobody listens to the log yet, as where a process starts."""
    root = logging.getLogger()
    with put_back():
        handlers, root.handlers = root.handlers, []
        try:
            yield
        finally:
            root.handlers = handlers


def unmeasured(environment: Mapping[str, str]) -> dict[str, str]:
    """Of processes whose coverage counts for nothing: they run no code of the service, or are
    killed before they could write it down. Measuring makes a start half as long again."""
    return {
        name: value for name, value in environment.items() if not name.startswith("COVERAGE_PROC")
    }
