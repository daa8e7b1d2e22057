"""Engine: what to show. Nothing here changes a state; the fold does.

select: features -> scores -> probabilities -> choice -> token, decision row -> answer.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from random import Random
from time import perf_counter, time
from typing import NamedTuple

import msgspec
import numpy as np

from service.bandits.policies import ranking, rules
from service.bandits.policies.candidates import Candidates
from service.definition.features import Array
from service.definition.select_request import InlineArm, Named, SelectRequest
from service.errors import Conflict, Invalid, NoFiniteScores, NotFound, NotPositiveDefinite
from service.log.buffer import LogAnswer, StoredDecision
from service.log.journal import Journal
from service.log.stores.base import DecisionRow
from service.observability.telemetry import Telemetry
from service.security.entropy import Entropy
from service.security.token import LIMIT, ShownArm, Ticket, TokenSealer, bytes_of, text_of
from service.serving import arms
from service.serving.bounds import CHEAP_MS, Bounds
from service.serving.retrieval import Retrieval
from service.settings import Settings
from service.state.events import (
    Decided,
    Decision,
    Draft,
    Shortlist,
    Shown,
    decode_decision,
    encode_decision,
)
from service.state.fold import State
from service.state.learner import Learner

_entropy = Entropy()

FEW, SEARCHED = 100, 12
"""Arms of a catalogue of which it does not matter how many are looked at; how many more are than a
search is to find for one direction."""

ASIDE_MS = 5.0
"""A decision that is estimated to take longer is made in another thread, so that no other request
waits for it."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    decision: Decision | Draft
    token: str
    experiment: str
    logged: bool


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A question, and what it is about.

    ms          that deciding it is estimated to take
    shortlist   how the learner chose the candidates itself
    """

    state: State
    question: SelectRequest
    learner: Learner
    assignment: float
    candidates: Candidates
    inline: dict[str, InlineArm]
    context: Array
    id: str
    seed: int
    ms: float
    shortlist: Shortlist | None = None


class Made(msgspec.Struct, frozen=True, gc=False):
    """A decision that nobody knows of yet.

    whole     its token holds what was shown; else its row alone does
    entropy   of the choice, in nats
    """

    decision: Draft
    token: str
    whole: bool
    row: DecisionRow
    entropy: float


class _Split(NamedTuple):
    """How traffic that names no policy is shared, while `learners` are these of `revision`.
    chances: of each to be assigned."""

    revision: int
    learners: Mapping[str, Learner]
    names: list[str]
    shares: Array
    chances: list[float]


class Engine:
    def __init__(
        self, journal: Journal, sealer: TokenSealer, settings: Settings, telemetry: Telemetry
    ) -> None:
        self._journal, self._sealer = journal, sealer
        self._settings, self._telemetry = settings, telemetry
        self._splits: dict[str, _Split] = {}
        self._retrieval = Retrieval()
        self._bounds = Bounds(settings)
        self._append = telemetry.stages.labels("append")

    def resolve(self, name: str | None) -> str:
        """The name of an experiment, or of the only one. Raises Invalid where a name is needed."""
        if name is not None:
            return name
        names = self._journal.names
        if len(names) == 1:
            return names[0]
        raise Invalid(
            "name the experiment: there is more than one" if names else "there is none yet",
            path="experiment",
        )

    def served(self, name: str | None) -> State | None:
        """A served experiment; None where this process has not heard of it yet. Raises Invalid
        where the name is needed, or Quarantined."""
        return self._journal.state(self.resolve(name))

    async def experiment(self, name: str | None) -> State:
        """The same, also of one that is new to this process. Raises NotFound beside."""
        name = self.resolve(name)
        state = self._journal.state(name)
        if state is None:
            state = await self._journal.discover(name)
            if state.deleted:
                raise NotFound("there is no experiment of this name", path="experiment")
        return state

    async def select(self, question: SelectRequest) -> Answer:
        """Decide, log, answer. Raises Refused, or StoreUnavailable where features are too many
        for the token and the log cannot hold them."""
        state = await self.experiment(question.experiment)
        if question.key is None:
            return await self._decide(state, question, None)
        own = self.own_id(state, question)
        assert own is not None
        held = await self._journal.decision_in_time(state.name, own)
        if held is not None:
            return self._again(state, question, held)
        return await self._decide(state, question, own)

    def own_id(self, state: State, question: SelectRequest) -> str | None:
        """The id of the decision that the request's key stands for; None where it has no key."""
        return None if question.key is None else self._sealer.request_id(state.name, question.key)

    def _again(self, state: State, question: SelectRequest, held: StoredDecision) -> Answer:
        """The decision that a key stands for. Raises Conflict where it came with something else."""
        decision = decode_decision(held.payload)
        if not self._asks_for(question, decision):
            raise Conflict("this Idempotency-Key came with another request before")
        self._telemetry.repeated.labels(state.name).inc()
        return Answer(decision, self._seal(state.name, decision)[0], state.name, held.logged)

    def _asks_for(self, question: SelectRequest, decision: Decision) -> bool:
        """Whether the decision answers the question, as far as the question says."""
        unit = None if question.unit is None else self._sealer.unit_hash(question.unit)
        asked = question.context, unit, question.top_k, question.deferred
        if asked != (decision.context, decision.unit, len(decision.shown), decision.deferred):
            return False
        if question.policy not in (None, decision.policy):
            return False
        named = question.arms
        if named is None:
            return True
        inline = {arm.id: arm.features for arm in named if isinstance(arm, InlineArm)}
        ids = [arm.id if isinstance(arm, InlineArm) else arm for arm in named]
        return (ids, inline) == (decision.arms, decision.inline)

    async def _decide(self, state: State, question: SelectRequest, own: str | None) -> Answer:
        """own: the id, where a key has it already."""
        start = perf_counter()
        if not arms.are_many(question.arms):
            asked = self.look_up(state, question, own)
            if not asked.candidates.ids:
                asked = await self._retrieved(asked)
            if asked.ms <= ASIDE_MS:
                parsed = perf_counter()
                chosen = decide(
                    asked.learner, asked.context, asked.candidates, question.top_k, asked.seed
                )
                return await self.log(asked, self._record_timed(asked, *chosen, start, parsed))
        async with self._journal.live[state.name].lock:  # nothing is folded meanwhile
            asked = await self._look_up_again(state.name, question, own)
            parsed = perf_counter()
            chosen = await asyncio.to_thread(
                decide,
                asked.learner, asked.context, asked.candidates, question.top_k, asked.seed,
            )  # fmt: skip
            made = self._record_timed(asked, *chosen, start, parsed)
        return await self.log(asked, made)

    async def _look_up_again(self, name: str, question: SelectRequest, own: str | None) -> Asked:
        """Under the lock, with as many arms as are named: what was looked up before it was had may
        be another by now."""
        state = await self.experiment(name)
        found = None
        if arms.are_many(question.arms):
            assert question.arms is not None
            found = await arms.find_many(state, question.arms, self._settings.max_arms)
        asked = self.look_up(state, question, own, found)
        return asked if asked.candidates.ids else await self._retrieved(asked)

    def _record_timed(
        self, asked: Asked, p: Array, slate: rules.Slate, start: float, parsed: float
    ) -> Made:
        """`record`, once decided, and how long all that took since."""
        observe = self._telemetry.stages.labels
        scored = perf_counter()
        made = self.record(asked, p, slate)
        observe("parse").observe(parsed - start)
        observe("score").observe(scored - parsed)
        observe("seal").observe(perf_counter() - scored)
        return made

    async def log(self, asked: Asked, made: Made) -> Answer:
        """Answer once the row is in the log."""
        sealed = perf_counter()
        stored = await self._journal.keep(made.row, required=not made.whole)
        return self.answer(asked, made, stored, sealed)

    def submit(self, made: Made, stored: LogAnswer) -> None:
        """Hand a decision to the log, which resolves `stored`."""
        self._journal.submit(made.row, required=not made.whole, answer=stored)

    def look_up(
        self,
        state: State,
        question: SelectRequest,
        own: str | None = None,
        found: arms.Found | None = None,
    ) -> Asked:
        """What a question is about, as the state has it. Raises Refused. Without candidates, where
        finding them takes long.

        own: the decision's id, where a key has it already; found: its arms, where they were
        """
        learner, assignment = self._assign(state, question)
        seed, shortlist = _entropy.getrandbits(63), None
        if question.arms is None and self._retrieval.applies(state, learner):
            context = state.schema.encode_context(question.context)
            candidates = self._retrieval.fast_candidates(state, learner, context, seed)
            inline: dict[str, InlineArm] = {}
            most = len(candidates.ids) or len(state.rows)
            if candidates.ids:
                shortlist = self._retrieval.shortlist(state, learner)
        else:
            candidates, inline = found or arms.find(state, question.arms, self._settings.max_arms)
            context = state.schema.encode_context(question.context)
            most = len(candidates.ids)
        if not 1 <= question.top_k <= min(most, self._settings.max_top_k):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        id_, ms = own or new_id(), learner.effort_ms(len(candidates.ids), question.top_k)
        if ms > CHEAP_MS:
            ms += self._bounds.expect_fitting(
                learner, candidates, question.top_k, question.arms, len(inline)
            )
        return Asked(
            state, question, learner, assignment, candidates, inline, context, id_, seed, ms,
            shortlist,
        )  # fmt: skip

    async def _retrieved(self, asked: Asked) -> Asked:
        """With its candidates."""
        found = await self._retrieval.candidates(
            asked.state, asked.learner, asked.context, asked.seed
        )
        if asked.question.top_k > len(found.ids):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        ms = asked.learner.effort_ms(len(found.ids), asked.question.top_k)
        self._bounds.expect_fitting(asked.learner, found, asked.question.top_k)
        shortlist = self._retrieval.shortlist(asked.state, asked.learner)
        return msgspec.structs.replace(asked, candidates=found, ms=ms, shortlist=shortlist)

    def record(self, asked: Asked, p: Array, slate: rules.Slate) -> Made:
        """Token and row of a decision. Raises Invalid where the row is too long.

        p: of the candidates, of the first slot. slate: what is shown.
        """
        state, question, learner = asked.state, asked.question, asked.learner
        candidates, inline, reward = asked.candidates, asked.inline, state.definition.reward
        now, ids = time(), candidates.ids
        reward_by = now + reward.wait_seconds
        context = asked.context.tolist()
        xs = [context + candidates.x[index].tolist() for index in slate.arms]
        decision = Decided(  # by its own name: called by an alias, it takes five times as long
            id=asked.id,
            at=now,
            policy=learner.name,
            assignment=asked.assignment,
            model_version=f"{learner.name}/{learner.active.number}@{state.position}",
            schema_version=state.schema_version,
            unit=None if question.unit is None else self._sealer.unit_hash(question.unit),
            context=question.context,
            arms=candidates.written_ids,
            inline={arm: inline[arm].features for arm in inline},
            probabilities=written(p, slate),
            seed=asked.seed,
            bank=learner.policy.bank_seed,
            shown=[
                Shown(ids[index], propensity, x, ids[index] in inline)
                for index, propensity, x in zip(slate.arms, slate.propensities, xs, strict=True)
            ],
            slate=slate.chance,
            reward_by=reward_by,
            accept_until=reward_by + reward.accept_seconds,
            deferred=question.deferred,
            key=question.caller,
            shortlist=asked.shortlist,
        )
        token, whole = self._seal(state.name, decision)
        waits = reward.default is not None and not question.deferred
        due = reward_by if waits else None
        payload = encode_decision(decision)
        if question.arms is not None and len(payload) > self._bounds.decision_bytes:
            raise self._bounds.too_long
        row = DecisionRow(state.name, asked.id, learner.name, payload, due)
        first = slate.propensities[0]
        return Made(decision, token, whole, row, 0.0 if first == 1.0 else rules.entropy(p))

    def answer(self, asked: Asked, made: Made, stored: StoredDecision, sealed: float) -> Answer:
        """The answer to a request whose decision is stored. Raises Conflict.

        sealed   when the decision was handed to the log, by `perf_counter`
        """
        self._append.observe(perf_counter() - sealed)
        state, row, decision = asked.state, made.row, made.decision
        if stored.payload is not row.payload and stored.payload != row.payload:
            return self._again(state, asked.question, stored)  # the same key came twice at once
        first = decision.shown[0]
        shown, candidates = len(decision.shown), len(asked.candidates.ids)
        recent = (
            decision.id, decision.at, first.arm, decision.model_version, shown, candidates,
            first.propensity,
        )  # fmt: skip
        self._telemetry.decided(state.name, row.policy, first.propensity, made.entropy, recent)
        self._telemetry.drift.decided(state, asked.context)
        return Answer(decision, made.token, state.name, stored.logged)

    def _assign(self, state: State, question: SelectRequest) -> tuple[Learner, float]:
        """The named policy, or one by its share of the traffic, sticky to the unit."""
        if question.policy is not None:
            learner = state.learners.get(question.policy)
            if learner is None:
                raise NotFound("the experiment has no policy of this name", path="policy")
            return learner, 1.0
        split = self._split(state)
        if question.unit is None:
            point = _entropy.random()
        else:
            digest = hashlib.blake2b(question.unit.encode(), key=state.name.encode()).digest()
            point = int.from_bytes(digest[:8], "big") / 2**64
        index = rules.choose(split.shares, point)
        return state.learners[split.names[index]], split.chances[index]

    def offered(self, name: str | None) -> int:
        """Arms that are looked at, at most, where a request names none."""
        journal = self._journal
        state = journal.state(name) if name else next(iter(journal.states.values()), None)
        if state is None or len(state.rows) <= FEW:
            return 0 if state is None else len(state.rows)
        found = [
            min(len(state.rows), SEARCHED * learner.policy.retrieve)
            if self._retrieval.applies(state, learner) and learner.policy.retrieve
            else len(state.rows)
            for learner in state.learners.values()
        ]
        return max(found)

    def _split(self, state: State) -> _Split:
        """Put together once after the experiment changed."""
        split = self._splits.get(state.name)
        learners = state.learners
        if split is None or split.revision != state.revision or split.learners is not learners:
            shares = np.array([learner.settings.share for learner in learners.values()])
            chances = (shares / shares.sum()).tolist()
            split = _Split(state.revision, learners, list(learners), shares, chances)
            self._splits[state.name] = split
        return split

    def candidates(self, state: State, named: Named | None) -> arms.Found:
        """The arms of a request, and those outside the catalogue. Raises Invalid that names each
        fault."""
        return arms.find(state, named, self._settings.max_arms)

    def _seal(self, experiment: str, decision: Decision | Draft) -> tuple[str, bool]:
        """The token, and whether it holds what was shown (which stays in the row alone where the
        token would grow beyond its limit)."""
        shown = [
            ShownArm(arm.arm, arm.propensity, bytes_of(arm.x), arm.inline) for arm in decision.shown
        ]
        token = self._sealer.seal(_ticket(experiment, decision, shown))
        if len(token) <= LIMIT:
            return token, True
        return self._sealer.seal(_ticket(experiment, decision, [])), False


def decide(
    learner: Learner, context: Array, candidates: Candidates, top_k: int, seed: int
) -> tuple[Array, rules.Slate]:
    """Probabilities of the first slot and what is shown: all that chance has a part in.

    The draw is from the probabilities that are logged, by the seed that is logged. Raises
    NoFiniteScores.
    """
    epsilon = learner.settings.epsilon
    try:
        if top_k > 1:
            scores = learner.score(context, candidates)
            p = rules.expect_whole(rules.floor(rules.probabilities(scores), epsilon))
            return p, ranking.rank(scores, top_k, epsilon, Random(seed))
        p = rules.expect_whole(
            rules.floor(learner.propensities(context[None], candidates)[0], epsilon)
        )
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault
    index = int(p.argmax())
    if p[index] < 1:  # a sure choice needs no draw, which takes longer than all this
        index = rules.choose(p, rules.point_of(seed))
    propensity = float(p[index])
    return p, rules.Slate([index], [propensity], propensity)


def new_id() -> str:
    """22 characters, 80 bits of them chance. Ids of one time lie together in a log that sorts them:
    chance alone made a commit touch twice the pages."""
    return text_of((int(time() * 1_000) << 80 | _entropy.getrandbits(80)).to_bytes(16, "big"))


def written(p: Array, slate: rules.Slate) -> msgspec.Raw | list[float]:
    """Probabilities as the log has them; JSON at once where one arm was sure, as it mostly is under
    a rule that draws nothing."""
    if slate.propensities[0] != 1.0:
        found: list[float] = p.tolist()
        return found
    before = slate.arms[0]
    after = len(p) - 1 - before
    return msgspec.Raw(b"[%b1.0%b]" % (b"0.0," * before, b",0.0" * after))


def _ticket(experiment: str, decision: Decision | Draft, shown: list[ShownArm]) -> Ticket:
    return Ticket(
        decision.id,
        experiment,
        decision.policy,
        decision.model_version,
        decision.schema_version,
        shown,
        decision.reward_by,
        decision.accept_until,
        decision.deferred,
    )
