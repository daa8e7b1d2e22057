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

from service.entropy import Entropy
from service.errors import Conflict, Fault, Invalid, NotFound
from service.events import Decision, Shown, decode_decision, encode_decision
from service.features import Array
from service.fold import State
from service.journal import Journal
from service.policies import rules
from service.policies.candidates import Candidates
from service.policies.learner import Learner
from service.settings import Settings
from service.stores.base import DecisionRow
from service.telemetry import Telemetry
from service.token import LIMIT, ShownArm, Ticket, TokenSealer, text_of
from service.writer import Held

_entropy = Entropy()


class InlineArm(msgspec.Struct, frozen=True):
    """An arm outside the catalogue."""

    id: str
    features: Mapping[str, Any]


class Question(msgspec.Struct, frozen=True):
    """One request for a decision. experiment, policy, arms: None where left out.

    key        the same one gives the same decision (None: each request is another)
    deferred   it may never be shown: nothing is learned of it before it is activated
    """

    context: Mapping[str, Any]
    experiment: str | None = None
    policy: str | None = None
    unit: str | None = None
    arms: Sequence[str | InlineArm] | None = None
    top_k: int = 1
    key: str | None = None
    deferred: bool = False


class Answer(NamedTuple):
    decision: Decision
    token: str
    experiment: str
    logged: bool


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

    async def experiment(self, name: str | None) -> State:
        """A served experiment. Raises NotFound, or Invalid where the name is needed."""
        if name is None:
            states = list(self._journal.states.values())
            if len(states) == 1:
                return states[0]
            raise Invalid(
                "name the experiment: there is more than one" if states else "there is none yet",
                path="experiment",
            )
        state = self._journal.state(name)
        if state is None:
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
        learner, assignment = self._assign(state, question)
        candidates, inline = self.candidates(state, question.arms)
        context, top_k = state.schema.encode_context(question.context), question.top_k
        if not 1 <= top_k <= min(len(candidates.ids), self._settings.max_top_k):
            raise Invalid("must be from 1 to the number of arms, within limits", path="top_k")
        id_ = own or text_of(_entropy.getrandbits(128).to_bytes(16, "big"))
        seed = _entropy.getrandbits(63)
        parsed = perf_counter()
        observe("parse").observe(parsed - start)
        if learner.heavy:
            p, slate = await self._decide_aside(state, learner, context, candidates, top_k, seed)
        else:
            p, slate = decide(learner, context, candidates, top_k, seed)
        scored = perf_counter()
        observe("score").observe(scored - parsed)
        now, reward, ids = time(), state.definition.reward, candidates.ids
        reward_by = now + reward.wait_seconds
        xs = [np.concatenate((context, candidates.x[index])) for index in slate.arms]
        decision = Decision(
            id=id_,
            at=now,
            policy=learner.name,
            assignment=assignment,
            model_version=f"{learner.name}/{learner.active.number}@{state.position}",
            schema_version=state.schema_version,
            unit=None if question.unit is None else self._sealer.unit_hash(question.unit),
            context=dict(question.context),
            arms=list(ids),
            inline={arm: dict(inline[arm].features) for arm in inline},
            probabilities=p.tolist(),
            seed=seed,
            bank=learner.bank_seed,
            shown=[
                Shown(ids[index], propensity, x.tolist(), ids[index] in inline)
                for index, propensity, x in zip(slate.arms, slate.propensities, xs, strict=True)
            ],
            slate=slate.chance,
            reward_by=reward_by,
            accept_until=reward_by + reward.accept_seconds,
            deferred=question.deferred,
        )
        token, whole = self._seal(state.name, decision, xs)
        sealed = perf_counter()
        observe("seal").observe(sealed - scored)
        waits = reward.default is not None and not question.deferred
        due = reward_by if waits else None
        row = DecisionRow(state.name, decision.id, learner.name, encode_decision(decision), due)
        held = await self._journal.keep(row, required=not whole)
        observe("append").observe(perf_counter() - sealed)
        if held.payload is not row.payload and held.payload != row.payload:
            return self._again(state, question, held)  # the same key came twice at once
        first = slate.propensities[0]
        entropy = 0.0 if first == 1.0 else rules.entropy(p)
        self._telemetry.decided(state.name, learner.name, first, entropy)
        return Answer(decision, token, state.name, held.logged)

    async def _decide_aside(
        self, state: State, *question: *tuple[Learner, Array, Candidates, int, int]
    ) -> tuple[Array, rules.Slate]:
        """In another thread, since it may take a second; nothing is folded meanwhile."""
        async with self._journal.live[state.name].lock:
            return await asyncio.to_thread(decide, *question)

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
        index = rules.invert(split.shares, point)
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
        catalogue = state.candidates
        try:
            known = [*map(catalogue.row_of.__getitem__, arms)]  # type: ignore[arg-type]
        except (KeyError, TypeError):  # one is at fault, or outside the catalogue
            return self._mixed(state, catalogue, arms)
        if len(set(known)) < len(known):
            return self._mixed(state, catalogue, arms)
        return catalogue.choose(arms, known), {}  # type: ignore[arg-type]

    def _mixed(
        self, state: State, catalogue: Candidates, arms: Sequence[str | InlineArm]
    ) -> tuple[Candidates, dict[str, InlineArm]]:
        ids, rows, faults, inline = [], [], [], {}
        for index, arm in enumerate(arms):
            if isinstance(arm, InlineArm):
                ids.append(arm.id)
                inline[arm.id] = arm
                if arm.id in catalogue.row_of:
                    faults.append(Fault(f"arms.{index}", "is in the catalogue: give its id alone"))
                else:
                    rows.append(state.schema.encode_arm(arm.features, f"arms.{index}.features"))
                continue
            ids.append(arm)
            row = catalogue.row_of.get(arm)
            if row is None:
                faults.append(Fault(f"arms.{index}", "is not in the catalogue"))
            else:
                rows.append(catalogue.x[row])
        if len(set(ids)) < len(ids):
            faults.append(Fault("arms", "an arm is given twice"))
        if faults:
            raise Invalid("an arm cannot be shown", faults=faults)
        return Candidates(tuple(ids), np.array(rows).reshape(len(rows), -1)), inline

    def _seal(
        self, experiment: str, decision: Decision, x: Sequence[Array] | None = None
    ) -> tuple[str, bool]:
        """The token, and whether it holds what was shown (which stays in the row alone where the
        token would grow beyond its limit). x: of each shown arm, where it is at hand."""
        features = x or [np.array(arm.x) for arm in decision.shown]
        shown = [
            ShownArm(arm.arm, arm.propensity, own.tobytes(), arm.inline)
            for arm, own in zip(decision.shown, features, strict=True)
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
    scores = learner.score(context, candidates)
    p = rules.floor(rules.probabilities(scores), epsilon)
    if top_k > 1:
        return p, rules.rank(scores, top_k, epsilon, Random(seed))
    index = int(p.argmax()) if len(scores.rows) == 1 else -1
    if index < 0 or p[index] < 1:  # a sure choice needs no draw, which takes longer than all this
        index = rules.choose(p, Random(seed))
    propensity = float(p[index])
    return p, rules.Slate([index], [propensity], propensity)


def _ticket(experiment: str, decision: Decision, shown: list[ShownArm]) -> Ticket:
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
