"""Engine: what to show. Nothing here changes a state; the fold does.

select: features -> scores -> probabilities -> choice -> token, decision row -> answer.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from time import perf_counter, time
from typing import Any, NamedTuple

import msgspec
import numpy as np

from service.access import expect_granted
from service.entropy import Entropy
from service.errors import Conflict, Fault, Invalid, NotFound
from service.events import Decided, Decision, Draft, Shown, decode_decision, encode_decision
from service.features import Array
from service.fold import State
from service.journal import Journal
from service.policies import rules
from service.policies.candidates import LARGE, Candidates
from service.policies.learner import Learner
from service.retrieval import Retrieval
from service.settings import Settings
from service.stores.base import DecisionRow
from service.telemetry import Telemetry
from service.token import LIMIT, ShownArm, Ticket, TokenSealer, bytes_of, text_of
from service.writer import Held

_entropy = Entropy()


class InlineArm(msgspec.Struct, frozen=True):
    """An arm outside the catalogue."""

    id: str
    features: dict[str, Any]


class Question(msgspec.Struct, frozen=True):
    """One request for a decision. experiment, policy, arms: None where left out.

    key        the same one gives the same decision (None: each request is another)
    deferred   it may never be shown: nothing is learned of it before it is activated
    """

    context: dict[str, Any]
    experiment: str | None = None
    policy: str | None = None
    unit: str | None = None
    arms: Sequence[str | InlineArm] | None = None
    top_k: int = 1
    key: str | None = None
    deferred: bool = False


class Answer(msgspec.Struct, frozen=True, gc=False):
    decision: Decision | Draft
    token: str
    experiment: str
    logged: bool


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A question, and what it is about."""

    state: State
    question: Question
    learner: Learner
    assignment: float
    candidates: Candidates
    inline: dict[str, InlineArm]
    context: Array
    id: str
    seed: int


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

    def served(self, name: str | None) -> State | None:
        """A served experiment; None where this process has not heard of it yet. Raises Invalid
        where the name is needed, or Forbidden."""
        if name is not None:
            expect_granted(name)
            return self._journal.state(name)
        states = list(self._journal.states.values())
        if len(states) == 1:
            expect_granted(states[0].name)
            return states[0]
        raise Invalid(
            "name the experiment: there is more than one" if states else "there is none yet",
            path="experiment",
        )

    async def experiment(self, name: str | None) -> State:
        """A served experiment. Raises NotFound, Invalid where the name is needed, or Forbidden."""
        state = self.served(name)
        if state is None:
            assert name is not None
            state = await self._journal.discover(name)
            if state.deleted:
                raise NotFound("there is no experiment of this name", path="experiment")
        return state

    async def select(self, question: Question) -> Answer:
        """Decide, log, answer. Raises Refused, or StoreUnavailable where features are too many
        for the token and the log cannot hold them."""
        state = await self.experiment(question.experiment)
        if question.key is None:
            return await self._decide(state, question, None)
        own = self._sealer.request_id(state.name, question.key)
        held = await self._journal.held_soon(state.name, own)
        if held is not None:
            return self._again(state, question, held)
        return await self._decide(state, question, own)

    def _again(self, state: State, question: Question, held: Held) -> Answer:
        """The decision that a key stands for. Raises Conflict where it came with something else."""
        decision = decode_decision(held.payload)
        if not self._asks_for(question, decision):
            raise Conflict("this Idempotency-Key came with another request before")
        self._telemetry.repeated.labels(state.name).inc()
        return Answer(decision, self._seal(state.name, decision)[0], state.name, held.logged)

    def _asks_for(self, question: Question, decision: Decision) -> bool:
        """Whether the decision answers the question, as far as the question says."""
        unit = None if question.unit is None else self._sealer.unit_hash(question.unit)
        asked = question.context, unit, question.top_k, question.deferred
        if asked != (decision.context, decision.unit, len(decision.shown), decision.deferred):
            return False
        if question.policy not in (None, decision.policy):
            return False
        arms = question.arms
        if arms is None:
            return True
        inline = {arm.id: arm.features for arm in arms if isinstance(arm, InlineArm)}
        ids = [arm.id if isinstance(arm, InlineArm) else arm for arm in arms]
        return (ids, inline) == (decision.arms, decision.inline)

    async def _decide(self, state: State, question: Question, own: str | None) -> Answer:
        """own: the id, where a key has it already."""
        observe = self._telemetry.stages.labels
        start = perf_counter()
        asked = self.look_up(state, question, own)
        if not asked.candidates.ids:
            asked = await self._retrieved(asked)
        parsed = perf_counter()
        observe("parse").observe(parsed - start)
        if asked.learner.heavy:
            p, slate = await self._decide_aside(asked)
        else:
            p, slate = decide(
                asked.learner, asked.context, asked.candidates, question.top_k, asked.seed
            )
        scored = perf_counter()
        observe("score").observe(scored - parsed)
        made = self.record(asked, p, slate)
        sealed = perf_counter()
        observe("seal").observe(sealed - scored)
        held = await self._journal.keep(made.row, required=not made.whole)
        observe("append").observe(perf_counter() - sealed)
        return self.answer(asked, made, held)

    def look_up(self, state: State, question: Question, own: str | None = None) -> Asked:
        """What a question is about, as the state has it. Raises Refused. Without candidates, where
        finding them takes long.

        own: the decision's id, where a key has it already
        """
        learner, assignment = self._assign(state, question)
        seed = _entropy.getrandbits(63)
        if question.arms is None and self._retrieval.applies(state, learner):
            context = state.schema.encode_context(question.context)
            candidates = self._retrieval.now(state, learner, context, seed)
            inline: dict[str, InlineArm] = {}
            most = len(candidates.ids) or len(state.rows)
        else:
            candidates, inline = self.candidates(state, question.arms)
            context = state.schema.encode_context(question.context)
            most = len(candidates.ids)
        if not 1 <= question.top_k <= min(most, self._settings.max_top_k):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        id_ = own or new_id()
        return Asked(
            state, question, learner, assignment, candidates, inline, context, id_, seed
        )  # fmt: skip

    async def _retrieved(self, asked: Asked) -> Asked:
        """With its candidates."""
        found = await self._retrieval.candidates(
            asked.state, asked.learner, asked.context, asked.seed
        )
        if asked.question.top_k > len(found.ids):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        return msgspec.structs.replace(asked, candidates=found)

    def record(self, asked: Asked, p: Array, slate: rules.Slate) -> Made:
        """Token and row of a decision.

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
            bank=learner.bank_seed,
            shown=[
                Shown(ids[index], propensity, x, ids[index] in inline)
                for index, propensity, x in zip(slate.arms, slate.propensities, xs, strict=True)
            ],
            slate=slate.chance,
            reward_by=reward_by,
            accept_until=reward_by + reward.accept_seconds,
            deferred=question.deferred,
        )
        token, whole = self._seal(state.name, decision)
        waits = reward.default is not None and not question.deferred
        due = reward_by if waits else None
        row = DecisionRow(state.name, asked.id, learner.name, encode_decision(decision), due)
        first = slate.propensities[0]
        return Made(decision, token, whole, row, 0.0 if first == 1.0 else rules.entropy(p))

    def answer(self, asked: Asked, made: Made, held: Held) -> Answer:
        """What is said of a decision once its row is held. Raises Conflict."""
        state, row, decision = asked.state, made.row, made.decision
        if held.payload is not row.payload and held.payload != row.payload:
            return self._again(state, asked.question, held)  # the same key came twice at once
        first = decision.shown[0]
        shown, arms = len(decision.shown), len(asked.candidates.ids)
        recent = (
            decision.id, decision.at, first.arm, decision.model_version, shown, arms,
            first.propensity,
        )  # fmt: skip
        self._telemetry.decided(state.name, row.policy, first.propensity, made.entropy, recent)
        self._telemetry.drift.decided(state, asked.context)
        return Answer(decision, made.token, state.name, held.logged)

    async def _decide_aside(self, asked: Asked) -> tuple[Array, rules.Slate]:
        """In another thread, since it may take a second; nothing is folded meanwhile."""
        async with self._journal.live[asked.state.name].lock:
            return await asyncio.to_thread(
                decide,
                asked.learner, asked.context, asked.candidates, asked.question.top_k, asked.seed,
            )  # fmt: skip

    def _assign(self, state: State, question: Question) -> tuple[Learner, float]:
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

    def candidates(
        self, state: State, arms: Sequence[str | InlineArm] | None
    ) -> tuple[Candidates, dict[str, InlineArm]]:
        """The arms of a request, and those outside the catalogue. Raises Invalid that names each
        fault."""
        if arms is None:
            if not state.arms:
                raise Invalid("the catalogue is empty: name arms with features", path="arms")
            return state.candidates, {}
        if not 1 <= len(arms) <= self._settings.max_arms:
            raise Invalid(f"give 1 to {self._settings.max_arms} arms", path="arms")
        named, large = tuple(arms), len(state.rows) > LARGE
        selections = state.selections if large else state.candidates.selections
        try:
            found = selections.get(named)
        except TypeError:  # one is outside the catalogue
            return self._mixed(state, arms)
        if found:
            return found, {}
        if large:
            found, inline = self._mixed(state, arms)
            selections.remember(named, found)
            return found, inline
        known = [*map(state.candidates.row_of.get, named)]  # type: ignore[arg-type]
        if None in known or len(set(known)) < len(known):  # one is at fault
            return self._mixed(state, arms)
        return state.candidates.choose(named, known), {}  # type: ignore[arg-type]

    def _mixed(
        self, state: State, arms: Sequence[str | InlineArm]
    ) -> tuple[Candidates, dict[str, InlineArm]]:
        ids, rows, faults, inline = [], [], [], {}
        for index, arm in enumerate(arms):
            if isinstance(arm, InlineArm):
                ids.append(arm.id)
                inline[arm.id] = arm
                if arm.id in state.rows:
                    faults.append(Fault(f"arms.{index}", "is in the catalogue: give its id alone"))
                else:
                    rows.append(state.schema.encode_arm(arm.features, f"arms.{index}.features"))
                continue
            ids.append(arm)
            row = state.rows.get(arm)
            if row is None:
                faults.append(Fault(f"arms.{index}", "is not in the catalogue"))
            else:
                rows.append(row)
        if len(set(ids)) < len(ids):
            faults.append(Fault("arms", "an arm is given twice"))
        if faults:
            raise Invalid("an arm cannot be shown", faults=faults)
        return Candidates(tuple(ids), np.array(rows).reshape(len(rows), -1)), inline

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

    The draw is from the probabilities that are logged, by the seed that is logged.
    """
    epsilon = learner.settings.epsilon
    if top_k > 1:
        scores = learner.score(context, candidates)
        p = rules.floor(rules.probabilities(scores), epsilon)
        return p, rules.rank(scores, top_k, epsilon, Random(seed))
    p = rules.floor(learner.chances(context, candidates), epsilon)
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
