"""Measures what the logs take in their store."""

import asyncio
import logging

from service.errors import StoreError
from service.log.log import Log
from service.log.stores import Store
from service.telemetry.metrics import LogSizes, Telemetry

logger = logging.getLogger(__name__)

MEASURE_S = 60.0
"""Seconds between two measurements. One takes some milliseconds of the store for each
experiment."""


class SizeMeter:
    def __init__(self, log: Log, store: Store, telemetry: Telemetry) -> None:
        self._log, self._store, self._telemetry = log, store, telemetry
        self._failing = False

    async def run(self) -> None:
        """Measure every minute, for ever."""
        while True:
            await self.measure()
            await asyncio.sleep(MEASURE_S)

    async def measure(self) -> None:
        """Measure where this process leads; forget the last sizes where it does not, or where the
        store cannot be read."""
        self._telemetry.log_sizes = None
        if not self._log.presence.leads:
            return
        try:
            size = await self._store.measure()
            rows = {name: (await self._store.describe(name)).rows for name in size.logs}
        except StoreError as fault:
            if not (self._failing or self._log.committer.degraded):  # the committer has told
                logger.warning("the size of the log is unknown: %s", fault)
            self._failing = True
            return
        self._failing = False
        self._telemetry.log_sizes = LogSizes(size.used, size.limit, size.logs, rows)
