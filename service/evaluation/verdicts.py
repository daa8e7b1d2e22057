"""Verdicts for a service: remembered for a while, since a verdict reads the whole log."""

import asyncio
import logging
from dataclasses import dataclass
from math import inf

from service.errors import Refused, StoreError
from service.evaluation.running import Worker
from service.log.log import Log
from service.observability.telemetry import Telemetry
from service.state.fold import State

logger = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
TIMES = 10.0
"""A verdict is kept for so many times as long as it took: whoever watches a long log costs a tenth
of a processor."""

EVERY_SECONDS = 3_600.0
"""Between two verdicts that nobody asks for: they tell of a log that cannot be trusted."""


@dataclass(frozen=True)
class _Kept:
    revision: int
    until: float
    answer: dict[str, object]


class Verdicts:
    def __init__(self, worker: Worker, log: Log, telemetry: Telemetry) -> None:
        self._worker, self._log, self._telemetry = worker, log, telemetry
        self._kept = dict[str, _Kept]()
        self._asking = dict[str, asyncio.Lock]()

    async def of(self, state: State) -> dict[str, object]:
        """Return the verdict of an experiment as JSON. Raises as `Worker.run`."""
        clock = self._telemetry.clock
        async with self._asking.setdefault(state.name, asyncio.Lock()):
            kept, began = self._kept.get(state.name), clock.monotonic()
            if kept is None or kept.revision != state.revision or kept.until < began:
                answer = await self._worker.run(state.name)
                ended = clock.monotonic()
                until = ended + max(FRESH_SECONDS, TIMES * (ended - began))
                if answer["control"] is None:
                    until = inf  # until the definition names one
                kept = self._kept[state.name] = _Kept(state.revision, until, answer)
                self._telemetry.mismatched[state.name] = not answer["fits"]
            return kept.answer

    async def run(self) -> None:
        """Judge every experiment with a control once an hour, for ever, in the process that
        leads."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            for state in list(self._log.replicas.states.values()):
                if not self._log.presence.leads or state.definition.control is None:
                    continue
                try:
                    await self.of(state)
                except (Refused, StoreError) as fault:
                    logger.debug("no verdict on %s: %s", state.name, fault)
