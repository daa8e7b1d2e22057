"""Verdicts, prices of rules, rollouts and values of policies, for a service: remembered for a
while, since each reads the whole log."""

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from math import inf

import msgspec

from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.request import EvaluationRequest
from service.analysis.rollouts import RolloutLooks, decode_looks
from service.analysis.running import EvaluationWorker, LogQuestion
from service.clock import iso
from service.definition.experiment import Definition
from service.errors import Invalid, Refused, StoreError
from service.log.log import Log
from service.state.fold import State
from service.telemetry.metrics import Telemetry

logger = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
TIMES = 10.0
"""Multiple of its computing time for which an answer is kept, so that polling costs at most a tenth
of a core."""

EVERY_SECONDS = 3_600.0
"""Seconds between two answers that nobody asks for: they detect damaged logs, and keep values of
shadows ready."""


@dataclass(frozen=True)
class _Kept:
    """An answer, or why there is none: a log that takes too long to read does so again."""

    revision: int
    until: float
    answer: bytes | Invalid


class _Fit(msgspec.Struct):
    """What a service reads of a verdict."""

    fits: bool


_decode = msgspec.json.Decoder(_Fit).decode


_Asked = tuple[str, ...]
"""An experiment, and what is asked of it."""


def _words_of(asks: EvaluationRequest | LogQuestion) -> tuple[str, ...]:
    if not isinstance(asks, EvaluationRequest):
        return (asks,)
    return ("shadows",) if asks.policies is None else ("compared", *asks.policies)


class Verdicts:
    def __init__(
        self, verdict: EvaluationWorker, shadows: EvaluationWorker, log: Log, telemetry: Telemetry
    ) -> None:
        self._verdict, self._shadows = verdict, shadows
        self._log, self._telemetry = log, telemetry
        self._kept = dict[_Asked, _Kept]()
        self._asking = defaultdict[_Asked, asyncio.Lock](asyncio.Lock)

    async def of(self, state: State) -> bytes:
        """Return the verdict of an experiment as JSON. Raises as `Worker.run`."""
        answer = await self._answer(state, self._verdict, "verdict")
        self._telemetry.mismatched[state.name] = not _decode(answer).fits
        return answer

    async def rules(self, state: State) -> bytes:
        """Return what each rule of an experiment costs as JSON. Raises as `Worker.run`."""
        return await self._answer(state, self._verdict, "rules")

    async def rollouts(self, state: State) -> RolloutLooks:
        """Return a look at the rollouts of an experiment. Raises as `Worker.run`."""
        return decode_looks(await self._answer(state, self._verdict, "rollouts"))

    async def shadows(self, state: State) -> bytes:
        """Return an evaluation of the shadows of an experiment as JSON. Raises as `Worker.run`."""
        request = EvaluationRequest(state.name, shadows=True)
        return await self._answer(state, self._shadows, request)

    async def compared(self, state: State, request: EvaluationRequest) -> EvaluationAnswer:
        """Return the evaluation of policies against one of them. Raises as `Worker.run`."""
        return EvaluationAnswer.model_validate_json(
            await self._answer(state, self._shadows, request)
        )

    async def _answer(
        self, state: State, worker: EvaluationWorker, asks: EvaluationRequest | LogQuestion
    ) -> bytes:
        clock = self._telemetry.clock
        key = state.name, *_words_of(asks)
        async with self._asking[key]:
            kept, began = self._kept.get(key), clock.monotonic()
            if kept is None or kept.revision != state.revision or kept.until < began:
                as_of = clock.time()
                answer: bytes | Invalid
                try:
                    answer = await worker.run(state.name, asks)
                except Invalid as fault:
                    answer = fault
                ended = clock.monotonic()
                until = ended + max(FRESH_SECONDS, TIMES * (ended - began))
                if isinstance(answer, bytes) and not _changes(state.definition, asks):
                    until = inf
                if isinstance(answer, bytes) and not isinstance(asks, EvaluationRequest):
                    next_at = None if until == inf else iso(as_of + until - began)
                    dates = msgspec.json.encode({"as_of": iso(as_of), "next_at": next_at})
                    answer = b"%b,%b" % (answer[:-1], dates[1:])
                kept = self._kept[key] = _Kept(state.revision, until, answer)
            if isinstance(kept.answer, Invalid):
                path = kept.answer.faults[0].path if kept.answer.faults else ""
                raise Invalid(kept.answer.detail, path=path)
            return kept.answer

    async def run(self) -> None:
        """Judge every experiment with a control, and all shadows, once an hour, for ever, in the
        process that leads."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            for state in list(self._log.replicas.states.values()):
                if not self._log.presence.leads:
                    continue
                try:
                    if state.definition.control is not None:
                        await self.of(state)
                    if state.definition.shadows:
                        await self.shadows(state)
                except (Refused, StoreError) as fault:
                    logger.debug("no verdict on %s: %s", state.name, fault)
                except Exception:  # the other experiments, and the next hour, have theirs
                    logger.exception("no verdict on %s", state.name)


def _changes(definition: Definition, asks: EvaluationRequest | LogQuestion) -> bool:
    """Say whether an answer may become another one while the definition stays as it is."""
    match asks:
        case "verdict":
            return definition.control is not None
        case "rules":
            timed = any(rule.timed for rule in definition.rules.named.values())
            return timed or bool(definition.rules.measured)
        case EvaluationRequest(shadows=True):
            return bool(definition.shadows)
        case _:
            return True
