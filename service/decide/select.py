"""Select: what to show. Nothing here changes a state; the fold does.

request -> lookup -> probabilities -> choice -> token and decision row -> log -> answer

Where the assigned policy cannot decide, the fallback does.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from time import perf_counter
from typing import NamedTuple

import msgspec

from service.decide import arms
from service.decide.decision_times import DecisionTimes
from service.decide.experiments import Experiments
from service.decide.fallbacks import Fallbacks
from service.decide.lookup import Lookup, Lookups
from service.decide.recorder import Choice, Recorded, Recorder
from service.decide.rollout_samples import Samples
from service.decide.scoring import decide, decide_batch
from service.decide.windows import Windows
from service.definition.select_request import BARE, Envelope, SelectRequest
from service.errors import (
    Conflict,
    Invalid,
    NoEligibleArm,
    NoFiniteScores,
    NotFound,
    Overdue,
    Refused,
)
from service.log.log import Log
from service.log.unlogged import StoredDecision
from service.security.entropy import Entropy
from service.security.token import TokenSealer
from service.settings import Settings
from service.state.decisions import Decision, decode_decision
from service.state.fold import State
from service.telemetry.metrics import Telemetry

LONG_S = 0.005
"""Decisions that take longer are made in another thread, so that no other request waits."""

TURN_S = 0.005
"""Expected time for the decisions of one turn of the event loop; the rest has the next turn."""

PATIENCE_SECONDS, WAITING_ENOUGH = 0.002, 16
"""Longest wait of a request for the end of a commit, and the number of requests that ends it."""


class Scored(NamedTuple):
    """Requests that were decided together. seconds: of processor time that it took."""

    choices: list[Choice]
    seconds: float


class Answer(msgspec.Struct, frozen=True, gc=False):
    decision: Decision
    token: str
    experiment: str
    logged: bool


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A decision: what it was made of, and what the log holds under its id.

    sealed   when it was handed to the log, by `perf_counter`
    """

    lookup: Lookup
    recorded: Recorded
    sealed: float
    stored: StoredDecision


class _Waiting(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A request that waits to be decided."""

    request: SelectRequest
    envelope: Envelope
    decided: asyncio.Future[Decided]

    def fail(self, fault: Exception) -> None:
        if not self.decided.done():
            self.decided.set_exception(fault)


class _Handed(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A decision that was handed to the log: a `RowAnswer` for its request."""

    decided: asyncio.Future[Decided]
    lookup: Lookup
    recorded: Recorded
    sealed: float

    def done(self) -> bool:
        return self.decided.done()

    def set_result(self, result: StoredDecision) -> None:
        self.decided.set_result(Decided(self.lookup, self.recorded, self.sealed, result))

    def set_exception(self, exception: BaseException) -> None:
        self.decided.set_exception(exception)


DecisionBatch = list[tuple[_Waiting, Lookup]]
"""Requests of one learner and the same candidates; for one arm each, or for rankings."""


class Selector:
    """Decides, logs and answers.

    The requests of one turn of the event loop are looked up, scored and recorded in the next, and
    their rows share a commit. One whose arms or decision take long is decided in another thread,
    while nothing is folded. Requests that arrive during a commit are decided at its end: their
    rows could not be written before, and fewer batches cost less. Once many wait they are decided,
    so that the processor is not idle during the commit of a distant log. Each request is charged
    its share of the time of each stage.
    """

    def __init__(
        self,
        log: Log,
        experiments: Experiments,
        sealer: TokenSealer,
        settings: Settings,
        telemetry: Telemetry,
        rng: Random | None = None,
    ) -> None:
        self._replicas, self._committer, self._experiments = (
            log.replicas,
            log.committer,
            experiments,
        )
        self._sealer, self._telemetry, self._fallbacks = sealer, telemetry, Fallbacks(telemetry)
        self._clock, self._samples = telemetry.clock, Samples(telemetry)
        self._windows = Windows(log, self._clock)
        self._lookups = Lookups(
            sealer, settings, log.clock, DecisionTimes(), rng or Entropy(), self._windows
        )
        self._recorder = Recorder(sealer, settings.max_decision_bytes)
        self._waiting: list[_Waiting] = []
        self._background = log.background
        self._alarm: asyncio.TimerHandle | None = None
        self._parse, self._score, self._seal, self._append = (
            telemetry.stages.labels(stage) for stage in ("parse", "score", "seal", "append")
        )

    async def select(self, request: SelectRequest, envelope: Envelope = BARE) -> Answer:
        """Decide, log, answer. Raises Refused, or StoreUnavailable where the decision has to be
        logged and cannot be."""
        if self._sealer.rotated and (earlier := await self._earlier(request, envelope.key)):
            return earlier  # made under an older secret, and so under another id
        try:
            return await self._decide(request, envelope)
        except Overdue:
            raise
        except Refused as fault:
            if earlier := await self._earlier(request, envelope.key):
                return earlier
            missing = isinstance(fault, Invalid | NotFound)  # another process may have defined it
            name = self._experiments.resolve(request.experiment)
            unleased = isinstance(fault, NoEligibleArm) and await self._windows.answered(name)
            if not (unleased or (missing and await self._replicas.catch_up(name))):
                raise
        return await self._decide(request, envelope)

    async def _decide(self, request: SelectRequest, envelope: Envelope) -> Answer:
        """Decide a request with the others of this turn."""
        if self._experiments.served(request.experiment) is None:  # new to this process
            await self._experiments.find(request.experiment)
        return self._answer(await self._join(request, envelope))

    # -- in a batch ----------------------------------------------------------------------------

    def _join(self, request: SelectRequest, envelope: Envelope) -> asyncio.Future[Decided]:
        loop, commit = asyncio.get_running_loop(), self._committer.under_way
        if not self._waiting:
            if commit is None:
                loop.call_soon(self._decide_waiting)
            else:
                commit.add_done_callback(self._decide_waiting)
                self._alarm = loop.call_later(PATIENCE_SECONDS, self._decide_waiting)
        decided: asyncio.Future[Decided] = loop.create_future()
        self._waiting.append(_Waiting(request, envelope, decided))
        if self._alarm is not None and len(self._waiting) == WAITING_ENOUGH:
            loop.call_soon(self._decide_waiting)
        return decided

    def _decide_waiting(self, _: object = None) -> None:
        """Decide the waiting requests: those for one policy, the same arms, and the same of them to
        try, as one batch."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for batch in self._batches():
            self._decide_batch(batch)

    def _batches(self) -> list[DecisionBatch]:
        taken, self._waiting = self._waiting, []
        start, spent, now = perf_counter(), 0.0, asyncio.get_running_loop().time()
        batches: dict[tuple[object, ...], DecisionBatch] = {}
        for place, waiting in enumerate(taken):
            if waiting.decided.done():  # the caller has gone
                continue
            if spent > TURN_S:
                self._waiting = taken[place:]
                asyncio.get_running_loop().call_soon(self._decide_waiting)
                break
            try:
                if waiting.envelope.deadline < now:
                    raise Overdue
                state = self._served(waiting.request)
                if arms.are_many(waiting.request.arms):
                    self._background.spawn(self._decide_aside(waiting, None))
                    continue
                lookup = self._lookups.look_up(state, waiting.request, waiting.envelope)
            except Exception as fault:
                waiting.fail(fault)
                continue
            if not lookup.candidates.ids or lookup.time.seconds > LONG_S:
                self._background.spawn(self._decide_aside(waiting, lookup))
                continue
            spent += lookup.time.seconds
            if lookup.ruled.plan is not None:  # the next one depends on what this one shows
                self._decide_batch([(waiting, lookup)])
                continue
            one, limits = lookup.slots == 1, lookup.ruled.limits
            same = id(lookup.decider.version), id(lookup.candidates), one, lookup.facts, id(limits)
            batches.setdefault(same, []).append((waiting, lookup))
        if known := sum(map(len, batches.values())):
            self._parse.observe((perf_counter() - start) / known, known)
        return list(batches.values())

    def _decide_batch(self, batch: DecisionBatch) -> None:
        start = perf_counter()
        try:
            self._log(batch, self._choose([lookup for _, lookup in batch]), start)
        except Exception as fault:
            self._samples.failed([lookup for _, lookup in batch], fault)
            for waiting, _ in batch:
                waiting.fail(fault)

    async def _decide_aside(self, waiting: _Waiting, lookup: Lookup | None) -> None:
        """Decide a request whose decision or candidates take long: in a thread, while nothing is
        folded. lookup: None where its arms are many."""
        start = perf_counter()
        try:
            if lookup is not None and not lookup.candidates.ids:
                revision, lookup = lookup.state.revision, await self._lookups.retrieve(lookup)
                if lookup.time.seconds <= LONG_S and lookup.state.revision == revision:
                    return self._decide_batch([(waiting, lookup)])
            async with self._replicas.by_name[self._served(waiting.request).name].lock:
                state = self._served(waiting.request)
                if waiting.decided.done():  # the caller has gone
                    return None
                if (
                    lookup is None
                    or (lookup.state, lookup.position) != (state, state.position)
                    or lookup.ruled.plan is not None
                ):
                    lookup = await self._look_up_long(state, waiting)
                parsed = self._note_parsed(start)
                if lookup.time.seconds <= LONG_S or lookup.ruled.plan is not None:
                    # It was measured by now, or others may not count before it does.
                    scored = self._choose([lookup])
                else:
                    scored = await asyncio.to_thread(self._choose, [lookup])
                self._log([(waiting, lookup)], scored, parsed)
        except Exception as fault:
            self._samples.failed([] if lookup is None else [lookup], fault)
            waiting.fail(fault)

    async def _look_up_long(self, state: State, waiting: _Waiting) -> Lookup:
        """Look a request up, whatever it takes. The caller holds the lock of the fold, so that the
        catalogue stays as it is."""
        request, found = waiting.request, None
        if arms.are_many(request.arms):
            found = await asyncio.to_thread(self._lookups.find_arms, state, request)
        return await self._lookups.retrieve(
            self._lookups.look_up(state, request, waiting.envelope, found)
        )

    def _served(self, request: SelectRequest) -> State:
        """Return the state of an experiment that this process knows. Raises NotFound where it was
        deleted meanwhile."""
        state = self._experiments.served(request.experiment)
        if state is None:
            raise self._experiments.unknown(request.experiment)
        return state

    def _choose(self, lookups: Sequence[Lookup]) -> Scored:
        """Decide requests of one learner and the same candidates; in any thread. Raises
        NoFiniteScores where the fallback has none either."""
        first, start = lookups[0], self._clock.cpu()
        chosen = self._choose_together(lookups) or [self._choose_alone(each) for each in lookups]
        seconds = self._clock.cpu() - start
        first.time.observe(seconds / len(lookups))
        return Scored(chosen, seconds)

    def _choose_together(self, lookups: Sequence[Lookup]) -> list[Choice]:
        """Decide requests for one arm at once; none, where there are no several, or where one of
        them cannot be decided."""
        first = lookups[0]
        if len(lookups) == 1 or first.slots > 1:
            return []
        contexts, seeds = [each.context for each in lookups], [each.seed for each in lookups]
        try:
            chosen = decide_batch(
                first.decider, contexts, first.candidates, seeds, first.facts, first.ruled.limits
            )
        except NoFiniteScores:
            return []
        return [(lookup, *choice) for lookup, choice in zip(lookups, chosen, strict=True)]

    def _choose_alone(self, lookup: Lookup) -> Choice:
        """Decide a request; the fallback does where its policy cannot."""
        try:
            return lookup, *decide(*lookup.choice)
        except NoFiniteScores:
            if lookup.decider == lookup.state.fallback:
                raise
        lookup = self._lookups.fall_back(lookup, "scores")
        return lookup, *decide(*lookup.choice)

    def _log(self, batch: DecisionBatch, scored: Scored, start: float) -> None:
        """Make tokens and rows, and hand them to the log. start: when scoring began."""
        chosen, ended = scored.choices, perf_counter()
        exposed = [self._lookups.count_shown(lookup, slate.arms) for lookup, _, slate in chosen]
        recorded = self._recorder.record(chosen, exposed)
        sealed, count = perf_counter(), len(batch)
        self._score.observe((ended - start) / count, count)
        self._seal.observe((sealed - ended) / count, count)
        self._samples.decided(chosen, recorded, scored.seconds)
        for (waiting, _), (lookup, *_), each in zip(batch, chosen, recorded, strict=True):
            if isinstance(each, Invalid):
                waiting.fail(each)
            elif not waiting.decided.done():  # else the caller has gone
                handed = _Handed(waiting.decided, lookup, each, sealed)
                self._committer.submit(each.row, required=each.required, answer=handed)

    def _note_parsed(self, start: float) -> float:
        parsed = perf_counter()
        self._parse.observe(parsed - start)
        return parsed

    # -- answers -------------------------------------------------------------------------------

    def _answer(self, decided: Decided) -> Answer:
        """Answer a request whose decision is stored. Raises Conflict."""
        self._append.observe(perf_counter() - decided.sealed)
        lookup, recorded, stored = decided.lookup, decided.recorded, decided.stored
        state, row, decision = lookup.state, recorded.row, recorded.decision
        if stored.payload is not row.payload and stored.payload != row.payload:
            return self._repeat(state.name, lookup.request, stored)  # a key came twice at once
        token = recorded.token
        if not stored.logged:
            keyed = lookup.envelope.key is not None
            token, _ = self._recorder.token(state.name, decision, logged=False, keyed=keyed)
        first = decision.shown[0]
        shown, candidates = len(decision.shown), len(lookup.candidates.ids)
        recent = (
            decision.id, decision.at, first.arm, decision.model_version, shown, candidates,
            first.propensity,
        )  # fmt: skip
        self._telemetry.decided(
            state.name, decision.policy, first.propensity, recorded.entropy, recent
        )
        self._fallbacks.note(lookup, decision)
        if decision.rules or decision.relaxed or lookup.ruled.unknown:
            self._telemetry.ruled(
                state.name, decision.rules, decision.relaxed, lookup.ruled.unknown
            )
        if decision.schema_version == state.schema_version:  # the features may have changed since
            self._telemetry.drift.decided(state, lookup.context)
        return Answer(decision, token, state.name, stored.logged)

    async def _earlier(self, request: SelectRequest, key: str | None) -> Answer | None:
        """Return the answer to an earlier request of this key. Raises Conflict as `_repeat`."""
        if key is None:
            return None
        state = await self._experiments.find(request.experiment)
        ids = self._sealer.request_ids(state.name, state.first_schema, key, state.erased_keys)
        stored = await self._committer.decision_in_time(state.name, *ids)
        return None if stored is None else self._repeat(state.name, request, stored)

    def _repeat(self, name: str, request: SelectRequest, stored: StoredDecision) -> Answer:
        """Answer with the decision that a key stands for. Raises Conflict where the key came with
        something else."""
        decision = decode_decision(stored.payload)
        if not self._recorder.repeats(request, decision):
            raise Conflict("this Idempotency-Key came with another request before")
        self._telemetry.repeated.labels(name).inc()
        token, _ = self._recorder.token(name, decision, logged=stored.logged, keyed=True)
        return Answer(decision, token, name, stored.logged)
