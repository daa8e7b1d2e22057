"""Engine: what to show. Nothing here changes a state; the fold does.

select: features -> scores -> probabilities -> choice -> token, decision row -> answer.
"""

import asyncio
from collections.abc import Container, Sequence
from random import Random
from time import perf_counter

import msgspec

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.definition.select_request import InlineArm, RequestedArms, SelectRequest
from service.errors import Conflict, Invalid, NotFound
from service.features.schema import Array
from service.log.committer import LogAnswer
from service.log.log import Log
from service.log.unlogged import StoredDecision
from service.naming import listed, not_found, quoted
from service.observability.telemetry import Telemetry
from service.security.entropy import Entropy
from service.security.token import TokenSealer
from service.serving import arms
from service.serving.decision_times import DecisionTimes
from service.serving.recorder import Lookup, Recorded, Recorder, new_id, seed_of
from service.serving.retrieval import Retrieval
from service.serving.scoring import decide, decide_batch
from service.serving.traffic import Traffic
from service.serving.tries import Tries
from service.settings import Settings
from service.state.events import Decision, Draft, decode_decision
from service.state.fold import State
from service.state.footprint import decision_bytes
from service.state.learner import Learner

FEW, SEARCHED = 100, 12
"""Catalogues of fewer arms cost nothing to look at; a search compares so many times the arms that
it is to find."""

LONG_S = 0.005
"""Decisions that take longer are made in another thread, so that no other request waits."""

CHEAP_S = 0.0005
"""Decisions that take no longer need little memory as well."""

Choice = tuple[Array, rules.Slate]
"""Probabilities of the first slot, and the arms that are shown."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    decision: Decision | Draft
    token: str
    experiment: str
    logged: bool


class Engine:
    def __init__(
        self,
        log: Log,
        sealer: TokenSealer,
        settings: Settings,
        telemetry: Telemetry,
        rng: Random | None = None,
    ) -> None:
        self._replicas, self._committer, self._clock = log.replicas, log.committer, log.clock
        self._settings, self._telemetry = settings, telemetry
        self._rng = rng or Entropy()
        self._traffic = Traffic(self._rng)
        self._retrieval = Retrieval()
        self._tries = Tries()
        self._times = DecisionTimes(telemetry.clock.cpu)
        self._recorder = Recorder(sealer, settings.max_decision_bytes, self._clock.now)
        self._sealer = sealer
        self._append = telemetry.stages.labels("append")

    @property
    def rotated(self) -> bool:
        """A key may stand for a decision that was made under an older secret."""
        return self._sealer.rotated

    def resolve(self, name: str | None) -> str:
        """The name of an experiment, or the default one, or the only one. Raises Invalid where a
        name is needed."""
        if (known := name or self._settings.default_experiment) is not None:
            return known
        names = self._replicas.names
        if len(names) == 1:
            return names[0]
        several = "name the experiment: FORAGE_DEFAULT_EXPERIMENT names none"
        say = f"{several}{self._choices}" if names else "there is none yet"
        raise Invalid(say, path="experiment")

    @property
    def _choices(self) -> str:
        """The end of a message: a caller with a key may see those of its key alone."""
        if self._settings.keys is not None:
            return "; GET /experiments lists them"
        return f"; there are: {listed(self._replicas.names)}"

    def _no_experiment(self, name: str, asked: str | None) -> NotFound:
        """asked: the name in the request; None: it has the default one."""
        if asked is None:
            say = f"FORAGE_DEFAULT_EXPERIMENT names {quoted(name)}, which does not exist"
            return NotFound(f"{say}: name the experiment{self._choices}", path="experiment")
        if self._settings.keys is not None:
            say = f"there is no experiment {quoted(name)}{self._choices}"
            return NotFound(say, path="experiment")
        return not_found("experiment", name, self._replicas.names)

    def served(self, name: str | None) -> State | None:
        """A served experiment; None where this process has not heard of it yet. Raises Invalid
        where the name is needed, or Quarantined."""
        return self._replicas.state(self.resolve(name))

    async def experiment(self, name: str | None) -> State:
        """The same, also of one that is new to this process. Raises NotFound beside."""
        asked, name = name, self.resolve(name)
        state = self._replicas.state(name)
        if state is None:
            state = await self._replicas.discover(name)
            if state.deleted:
                raise self._no_experiment(name, asked)
        return state

    async def current(self, name: str | None) -> State:
        """The same, with all that other processes have appended, if the log can be read."""
        await self._replicas.catch_up(self.resolve(name))
        return await self.experiment(name)

    async def select(self, request: SelectRequest) -> Answer:
        """Decide, log, answer. Raises Refused, or StoreUnavailable where the decision has to be
        logged and cannot be."""
        try:
            return await self._select(request)
        except (Invalid, NotFound):  # perhaps of what another process has defined just now
            if not await self._replicas.catch_up(self.resolve(request.experiment)):
                raise
        return await self._select(request)

    async def _select(self, request: SelectRequest) -> Answer:
        state = await self.experiment(request.experiment)
        if ids := self._recorder.request_ids(state.name, request):
            stored = await self._committer.decision_in_time(state.name, *ids)
            if stored is not None:
                return self._repeat(state, request, stored)
        return await self._decide(state, request)

    def _repeat(self, state: State, request: SelectRequest, stored: StoredDecision) -> Answer:
        """The decision that a key stands for. Raises Conflict where the key came with something
        else."""
        decision = decode_decision(stored.payload)
        if not self._recorder.repeats(request, decision):
            raise Conflict("this Idempotency-Key came with another request before")
        self._telemetry.repeated.labels(state.name).inc()
        token, _ = self._recorder.token(state.name, decision, contested=not stored.logged)
        return Answer(decision, token, state.name, stored.logged)

    async def _decide(self, state: State, request: SelectRequest) -> Answer:
        start = perf_counter()
        if arms.are_many(request.arms):
            return await self._decide_apart(request, state.name)
        lookup = self.look_up(state, request)
        if not lookup.candidates.ids:
            lookup = await self._retrieve(lookup)
        if lookup.time.seconds > LONG_S:
            return await self.decide_apart(lookup)
        parsed = perf_counter()
        chosen = self.decide(lookup)
        return await self._log(lookup, self._record(lookup, *chosen, start, parsed))

    async def decide_apart(self, lookup: Lookup) -> Answer:
        """Decide in another thread, log, answer; raises what `select` raises."""
        return await self._decide_apart(lookup.request, lookup.state.name, lookup)

    async def _decide_apart(
        self, request: SelectRequest, name: str, lookup: Lookup | None = None
    ) -> Answer:
        start = perf_counter()
        async with self._replicas.by_name[name].lock:  # nothing is folded meanwhile
            state = self._replicas.by_name[name].state
            if lookup is None or (lookup.state, lookup.position) != (state, state.position):
                lookup = await self._look_up_again(request, name)
            parsed = perf_counter()
            if lookup.time.seconds <= LONG_S:  # measured by now
                chosen = self.decide(lookup)
            else:
                chosen = await asyncio.to_thread(self.decide, lookup)
            recorded = self._record(lookup, *chosen, start, parsed)
        return await self._log(lookup, recorded)

    def decide(self, lookup: Lookup) -> Choice:
        """`scoring.decide`, measured; in any thread."""
        clock = self._times.clock
        start = clock()
        chosen = decide(*lookup.choice)
        lookup.time.observe(clock() - start)
        return chosen

    def decide_batch(self, lookups: Sequence[Lookup]) -> list[Choice]:
        """`scoring.decide_batch`, measured: one arm each, of the same candidates by one policy."""
        clock, first = self._times.clock, lookups[0]
        start = clock()
        contexts, seeds = [each.context for each in lookups], [each.seed for each in lookups]
        chosen = decide_batch(first.learner, contexts, first.candidates, seeds, first.untried)
        first.time.observe((clock() - start) / len(lookups))
        return chosen

    async def _look_up_again(self, request: SelectRequest, name: str) -> Lookup:
        """Under the lock, with any number of arms: the state may have changed before it was
        acquired."""
        state = await self.experiment(name)
        found = None
        if arms.are_many(request.arms):
            assert request.arms is not None
            found = await arms.find_many(state, request.arms, self._settings.max_arms)
        lookup = self.look_up(state, request, found)
        return lookup if lookup.candidates.ids else await self._retrieve(lookup)

    def record(self, lookup: Lookup, p: Array, slate: rules.Slate) -> Recorded:
        """`Recorder.record`; the shown arms count as tried."""
        if lookup.untried:
            ids = lookup.candidates.ids
            self._tries.show(lookup.learner, [ids[index] for index in slate.arms])
        return self._recorder.record(lookup, p, slate)

    def _record(
        self, lookup: Lookup, p: Array, slate: rules.Slate, start: float, parsed: float
    ) -> Recorded:
        """`record`, with the time of each stage observed."""
        observe = self._telemetry.stages.labels
        scored = perf_counter()
        recorded = self.record(lookup, p, slate)
        observe("parse").observe(parsed - start)
        observe("score").observe(scored - parsed)
        observe("seal").observe(perf_counter() - scored)
        return recorded

    async def _log(self, lookup: Lookup, recorded: Recorded) -> Answer:
        sealed = perf_counter()
        stored = await self._committer.record(recorded.row, required=recorded.required)
        return self.answer(lookup, recorded, stored, sealed)

    def submit(self, recorded: Recorded, stored: LogAnswer) -> None:
        """Hand a decision to the log, which resolves `stored`."""
        self._committer.submit(recorded.row, required=recorded.required, answer=stored)

    def look_up(
        self, state: State, request: SelectRequest, found: arms.Found | None = None
    ) -> Lookup:
        """Raises Refused. Without candidates where finding them takes long.

        found   the arms of the request, where they are known already
        """
        ids = self._recorder.request_ids(state.name, request)
        # One key has one seed: two processes that have folded the same log decide alike.
        seed, shortlist = seed_of(ids[0]) if ids else self._rng.getrandbits(63), None
        learner, assignment = self._traffic.assign(state, request)
        if request.arms is None and self._retrieval.applies(state, learner):
            context = state.schema.encode_context(request.context)
            candidates = self._retrieval.fast_candidates(state, learner, context, seed)
            inline: dict[str, InlineArm] = {}
            most = len(candidates.ids) or len(state.rows)
            if candidates.ids:
                shortlist = self._retrieval.shortlist(state, learner)
        else:
            candidates, inline = found or arms.find(state, request.arms, self._settings.max_arms)
            context = state.schema.encode_context(request.context)
            most = len(candidates.ids)
        if not 1 <= request.top_k <= min(most, self._settings.max_top_k):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        time = self._times.of(learner, len(candidates.ids), request.top_k)
        if time.seconds > CHEAP_S:
            self._expect_room(learner, len(candidates.ids), request.top_k)
        return Lookup(
            state, state.position, request, learner, assignment, candidates, inline, context,
            ids[0] if ids else new_id(self._clock.now(state), self._rng),
            seed, time, shortlist, self._untried(learner, candidates, request, inline),
        )  # fmt: skip

    def _untried(
        self,
        learner: Learner,
        found: Candidates,
        request: SelectRequest,
        outside: Container[str] = (),
    ) -> list[int]:
        """Candidates to try. Showings of this process count, but for a key: two processes that have
        folded the same log decide it alike."""
        if request.key is not None:
            return learner.untried(found, outside)
        return self._tries.untried(learner, found, outside)

    async def _retrieve(self, lookup: Lookup) -> Lookup:
        """With its candidates."""
        state, learner = lookup.state, lookup.learner
        top_k = lookup.request.top_k
        found = await self._retrieval.candidates(state, learner, lookup.context, lookup.seed)
        if top_k > len(found.ids):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        self._expect_room(learner, len(found.ids), top_k)
        return msgspec.structs.replace(
            lookup,
            candidates=found,
            time=self._times.of(learner, len(found.ids), top_k),
            shortlist=self._retrieval.shortlist(state, learner),
            untried=self._untried(learner, found, lookup.request),
        )

    def _expect_room(self, learner: Learner, arms: int, slots: int) -> None:
        """Raises Invalid for a decision that would take too much memory."""
        wanted = decision_bytes(learner.active, learner.policy.rule.draws, arms, slots)
        most = self._settings.max_select_memory_bytes
        if wanted > most:
            raise Invalid(
                f"would take some {wanted:.1e} bytes of memory, and may take {most:.1e}: "
                "name fewer arms, or rank one",
                path="arms",
            )

    def answer(
        self, lookup: Lookup, recorded: Recorded, stored: StoredDecision, sealed: float
    ) -> Answer:
        """The answer to a request whose decision is stored. Raises Conflict.

        sealed   when the decision was handed to the log, by `perf_counter`
        """
        self._append.observe(perf_counter() - sealed)
        state, row, decision = lookup.state, recorded.row, recorded.decision
        if stored.payload is not row.payload and stored.payload != row.payload:
            return self._repeat(state, lookup.request, stored)  # a key came twice at once
        token = recorded.token
        if lookup.request.key is not None and not stored.logged:
            token, _ = self._recorder.token(state.name, decision, contested=True)
        first = decision.shown[0]
        shown, candidates = len(decision.shown), len(lookup.candidates.ids)
        recent = (
            decision.id, decision.at, first.arm, decision.model_version, shown, candidates,
            first.propensity,
        )  # fmt: skip
        self._telemetry.decided(state.name, row.policy, first.propensity, recorded.entropy, recent)
        if decision.schema_version == state.schema_version:  # the features may have changed since
            self._telemetry.drift.decided(state, lookup.context)
        return Answer(decision, token, state.name, stored.logged)

    def offered(self, name: str | None) -> int:
        """Arms that are looked at, at most, where a request names none."""
        replicas = self._replicas
        state = replicas.state(name) if name else next(iter(replicas.states.values()), None)
        if state is None or len(state.rows) <= FEW:
            return 0 if state is None else len(state.rows)
        found = [
            min(len(state.rows), SEARCHED * learner.policy.retrieve)
            if self._retrieval.applies(state, learner) and learner.policy.retrieve
            else len(state.rows)
            for learner in state.learners.values()
        ]
        return max(found)

    def candidates(self, state: State, named: RequestedArms | None) -> arms.Found:
        """The arms of a request, and those outside the catalogue. Raises Invalid that names each
        fault."""
        return arms.find(state, named, self._settings.max_arms)
