"""Verdicts for a service: remembered for a while, since a verdict reads the whole log."""

import asyncio
from dataclasses import dataclass

from service.clock import Clock
from service.evaluation.running import Worker
from service.state.fold import State

FRESH_SECONDS = 10.0
TIMES = 10.0
"""A verdict is kept for so many times as long as it took: whoever watches a long log costs a tenth
of a processor."""


@dataclass(frozen=True)
class _Kept:
    revision: int
    until: float
    answer: dict[str, object]


class Verdicts:
    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._worker, self._clock = worker, clock
        self._kept = dict[str, _Kept]()
        self._asking = dict[str, asyncio.Lock]()

    async def of(self, state: State) -> dict[str, object]:
        """Return the verdict of an experiment as JSON. Raises as `Worker.run`."""
        async with self._asking.setdefault(state.name, asyncio.Lock()):
            kept, began = self._kept.get(state.name), self._clock.monotonic()
            if kept is None or kept.revision != state.revision or kept.until < began:
                answer = await self._worker.run(state.name)
                ended = self._clock.monotonic()
                until = ended + max(FRESH_SECONDS, TIMES * (ended - began))
                kept = self._kept[state.name] = _Kept(state.revision, until, answer)
            return kept.answer
