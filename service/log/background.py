"""Tasks that run beside the requests until the service closes."""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 0.25


class Background:
    """A task that fails is logged, not lost."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            logger.error("a background task failed", exc_info=fault)

    async def close(self) -> None:
        while self._tasks:  # wait_for (Python 3.11), which redis-py calls, may swallow one cancel
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_SECONDS)
