"""SelectBatcher: requests for decisions that arrive together are scored together."""

import asyncio
from time import perf_counter

from service.definition.select_request import SelectRequest
from service.errors import Overdue, Refused
from service.log.committer import Committer, LogAnswer
from service.log.unlogged import StoredDecision
from service.observability.telemetry import Telemetry
from service.serving.arms import are_many
from service.serving.engine import LONG_S, Answer, Engine
from service.serving.recorder import Lookup, Recorded

TURN_S = 0.005
"""Expected time for the decisions of one turn of the event loop; the rest has the next turn."""

PATIENCE_SECONDS, ENOUGH = 0.002, 16
"""Longest wait of a request for the end of a commit, and the number of requests that ends it."""

UNDECIDED = StoredDecision(b"", logged=False)
"""In place of a stored decision: the engine has to decide by itself."""


class _Waiting:
    """A request and, once it is decided, its decision and when that was handed to the log.

    long   what was looked up, where the decision takes too long for this turn
    """

    __slots__ = ("decided", "long", "request", "sealed", "stored")

    def __init__(self, request: SelectRequest, stored: LogAnswer) -> None:
        self.request, self.stored = request, stored
        self.decided: tuple[Lookup, Recorded] | None = None
        self.long: Lookup | None = None
        self.sealed = 0.0


class SelectBatcher:
    """Decides, logs and answers.

    The requests of one turn of the event loop are looked up, scored and recorded in the next, and
    their rows share a commit. Requests that arrive during a commit are decided at its end: their
    rows could not be written before, and fewer batches cost less. Once many wait they are decided,
    so that the processor is not idle during the commit of a distant log. Each request is charged
    its share of the time of each stage.
    """

    def __init__(self, engine: Engine, committer: Committer, telemetry: Telemetry) -> None:
        self._engine, self._committer = engine, committer
        self._waiting: list[_Waiting] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._parse, self._score, self._seal = (
            telemetry.stages.labels(stage) for stage in ("parse", "score", "seal")
        )

    async def select(self, request: SelectRequest) -> Answer:
        """Raises what `Engine.select` raises."""
        made_before = request.key is not None and self._engine.rotated  # under an older secret
        if made_before or (request.arms is not None and are_many(request.arms)):
            return await self._engine.select(request)
        try:
            waiting = self._enqueue(request)
            stored = await waiting.stored
            if waiting.decided is not None:
                assert isinstance(stored, StoredDecision)
                return self._engine.answer(*waiting.decided, stored, waiting.sealed)
            if waiting.long is not None:
                return await self._engine.decide_apart(waiting.long)
        except Refused as fault:
            if isinstance(fault, Overdue):
                raise  # else the key may stand for an earlier decision, or the state is behind
        return await self._engine.select(request)

    def _enqueue(self, request: SelectRequest) -> _Waiting:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            commit = self._committer.under_way
            if commit is not None:
                commit.add_done_callback(self._decide)
                self._alarm = loop.call_later(PATIENCE_SECONDS, self._decide)
            else:
                loop.call_soon(self._decide)
        waiting = _Waiting(request, loop.create_future())
        self._waiting.append(waiting)
        if self._alarm is not None and len(self._waiting) == ENOUGH:
            loop.call_soon(self._decide)
        return waiting

    def _decide(self, _: object = None) -> None:
        """Decide the waiting requests: those for one policy, the same arms, and the same of them to
        try, as one batch."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for batch in self._batches():
            try:
                self._decide_batch(batch)
            except Exception as fault:
                for waiting, _ in batch:
                    _fail(waiting, fault)

    def _batches(self) -> list[list[tuple[_Waiting, Lookup]]]:
        taken, self._waiting = self._waiting, []
        start, spent, now = perf_counter(), 0.0, asyncio.get_running_loop().time()
        batches: dict[tuple[object, ...], list[tuple[_Waiting, Lookup]]] = {}
        for place, waiting in enumerate(taken):
            if waiting.stored.done():  # the caller has gone
                continue
            if spent > TURN_S:
                self._waiting = taken[place:]
                asyncio.get_running_loop().call_soon(self._decide)
                break
            try:
                if waiting.request.deadline < now:
                    raise Overdue
                lookup = self._look_up(waiting.request)
            except Exception as fault:
                _fail(waiting, fault)
                continue
            if lookup is None or lookup.time.seconds > LONG_S:
                waiting.long = lookup
                waiting.stored.set_result(UNDECIDED)
                continue
            spent += lookup.time.seconds
            one, untried = lookup.request.top_k == 1, tuple(lookup.untried)
            same = id(lookup.learner), id(lookup.candidates), one, untried
            batches.setdefault(same, []).append((waiting, lookup))
        if known := sum(map(len, batches.values())):
            self._parse.observe((perf_counter() - start) / known, known)
        return list(batches.values())

    def _look_up(self, request: SelectRequest) -> Lookup | None:
        """None where the experiment is new to this process, or finding candidates takes long."""
        state = self._engine.served(request.experiment)
        if state is None:
            return None
        lookup = self._engine.look_up(state, request)
        return lookup if lookup.candidates.ids else None

    def _decide_batch(self, batch: list[tuple[_Waiting, Lookup]]) -> None:
        """One learner and the same candidates; for one arm each, or for rankings."""
        start = perf_counter()
        lookups = [lookup for _, lookup in batch]
        first = lookups[0]
        if len(lookups) > 1 and first.request.top_k == 1:
            chosen = self._engine.decide_batch(lookups)
        else:
            chosen = [self._engine.decide(each) for each in lookups]
        scored = perf_counter()
        recorded = [
            self._engine.record(each, *one) for each, one in zip(lookups, chosen, strict=True)
        ]
        sealed = perf_counter()
        self._score.observe((scored - start) / len(batch), len(batch))
        self._seal.observe((sealed - scored) / len(batch), len(batch))
        for (waiting, lookup), decision in zip(batch, recorded, strict=True):
            waiting.decided, waiting.sealed = (lookup, decision), sealed
            self._engine.submit(decision, waiting.stored)


def _fail(waiting: _Waiting, fault: Exception) -> None:
    if not waiting.stored.done():
        waiting.stored.set_exception(fault)
