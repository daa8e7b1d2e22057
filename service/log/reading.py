"""What every reader of a log beside a running service shares: an open store that is never written,
the experiments in it, and a line of progress now and then."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import TypeVar

from service.clock import SYSTEM, Clock
from service.errors import ConfigurationError, Invalid, StoreUnavailable
from service.log.stores import Store, open_store
from service.naming import listed, not_found

S = TypeVar("S", bound=Store)

logger = logging.getLogger(__name__)

OPEN_RETRY_SECONDS = 1.0
SAY_SECONDS = 0.2
BAR = 24

Say = Callable[[str], None]
"""Function that takes one line of progress."""

CountProgress = Callable[[str, int, int], None]
"""Function that takes progress as numbers: what is done, how many of them, of how many."""


def readable_store(url: str) -> Store:
    """Return the store of another process, not yet opened. Raises ConfigurationError."""
    if url.startswith("memory"):
        raise ConfigurationError("FORAGE_STORE: no other process can read a memory:// store")
    return open_store(url, readonly=True)


@asynccontextmanager
async def reading(url: str, *, wait: Callable[[], bool] = lambda: False) -> AsyncIterator[Store]:
    """Open the store read-only. wait: whether to wait longer for a service to create it."""
    store, warned = readable_store(url), False
    while True:
        try:
            await store.open()
            break
        except StoreUnavailable as fault:
            if not wait():
                raise
            if not warned:
                logger.warning("waiting for the store: %s", fault)
            warned = True
            await asyncio.sleep(OPEN_RETRY_SECONDS)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened(store: S) -> AsyncIterator[S]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def experiments_of(store: Store, experiment: str | None) -> list[str]:
    """Return the one experiment that is named, or all. Raises NotFound."""
    names = await store.experiments()
    if experiment is None:
        return names
    if experiment not in names:
        raise not_found("experiment", experiment, names)
    return [experiment]


async def single_experiment(store: Store, experiment: str | None) -> str:
    """Return the experiment that is named, or the only one. Raises NotFound or Invalid."""
    names = await experiments_of(store, experiment)
    if len(names) != 1:
        say = f"name the experiment, one of: {listed(names)}" if names else "there is none"
        raise Invalid(say, path="experiment")
    return names[0]


class Progress:
    """Reports progress a few times a second, where there is somebody to report to: in lines for
    people, or in numbers."""

    def __init__(
        self, say: Say | None = None, clock: Clock = SYSTEM, count: CountProgress | None = None
    ) -> None:
        self._say, self._count, self._clock = say, count, clock
        self._said = -inf

    def tell(self, line: str) -> None:
        if self._say and self._is_due():
            self._say(line)

    def share(self, doing: str, done: int, of: int) -> None:
        """Report how many are done of how many. A log that grows meanwhile may have more."""
        if not (self._say or self._count) or not self._is_due():
            return
        of = max(of, done)
        if self._count:
            self._count(doing, done, of)
        if self._say:
            full = BAR * done // of
            self._say(f"{doing}: {'█' * full}{'░' * (BAR - full)} {done / of:.0%} of {of:,}")

    def _is_due(self) -> bool:
        """Say whether the last report is long enough ago, and count this one as the last."""
        if (now := self._clock.monotonic()) <= self._said + SAY_SECONDS:
            return False
        self._said = now
        return True


SILENT = Progress()
