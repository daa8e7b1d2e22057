"""What a decision was and why: its row, re-derived as far as the present state allows."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import BaseModel, Field

from service.analysis.rederive import candidates_of, check_choice, decider_of
from service.decide.experiments import expect_present
from service.errors import Invalid, NotFound, NotPositiveDefinite
from service.log.log import Log
from service.log.stores import Store
from service.naming import quoted
from service.observe.attributions import CandidateAnswer, attributions, unexplained
from service.observe.rule_sentences import sentences
from service.security.access import Grant, expect_granted, granted
from service.settle.marks import ERASED, activation_mark, arm_mark, read_arm
from service.state.decisions import Decision, decode_decision, is_imported, is_whole
from service.state.fold import State


class Ranked(BaseModel):
    arm: str
    propensity: float = Field(description="Chance of this arm in this slot, given the policy.")


class LearnedAnswer(BaseModel):
    arm: str
    reward: float
    default: bool
    weight: float = Field(description="Heads count it as so many rewards: a miss in a slate.")


class DecisionAnswer(BaseModel):
    id: str
    experiment: str
    policy: str
    assignment: float
    model_version: str
    schema_version: int
    fallback: str = Field(
        description="Why the fallback decided in place of the policy; empty where the policy did."
    )
    activated: bool | None = Field(
        description="Whether a deferred decision was shown; null: it was not deferred."
    )
    at: datetime
    key: str = Field(description="Name of the API key that asked; empty where keys are off.")
    context: dict[str, object]
    ranking: list[Ranked]
    slate_propensity: float | None = Field(
        description="Chance of the whole ranking; null where a float cannot hold it."
    )
    slate_log_propensity: float = Field(
        description="Natural logarithm of the chance of the whole ranking."
    )
    seed: int
    candidates: list[CandidateAnswer]
    choice_follows: bool = Field(
        description="The seed draws the logged choice from the logged probabilities; of a slate, "
        "its first arm has the probability that is logged for it."
    )
    same_head: bool = Field(
        description="The head has not changed since: mean and width are those "
        "that the decision was made with."
    )
    learned: list[LearnedAnswer]
    rules: list[str] = Field(
        description="Names of the rules that removed an arm or held a chance where it is."
    )
    relaxed: list[str] = Field(
        description="Names of the rules that could not hold beside others, and yielded."
    )
    said: list[str] = Field(
        description="What the rules did, in words, as far as the present definition has them."
    )
    reward_by: datetime
    accept_until: datetime


async def explain(
    log: Log, store: Store, id: str, experiment: str | None, grant: Grant | None = None
) -> DecisionAnswer:
    """Explain a decision. Raises NotFound, Gone, Forbidden, Quarantined. experiment: None searches
    all."""
    if experiment is not None:
        expect_granted(grant, experiment)
    for name, state in log.replicas.states.items():
        if experiment in (None, name) and granted(grant, name):
            row = await store.decision(name, id)
            if row is not None:
                decision = decode_decision(row)
                expect_present(state, decision.schema_version)
                return await _explain(log, store, state, decision)
    for name in log.replicas.quarantined:
        if experiment in (None, name) and granted(grant, name):
            log.replicas.state(name)  # raises: it may be there
    raise NotFound(f"no experiment has a decision {quoted(id)}", path="id")


async def _explain(log: Log, store: Store, state: State, decision: Decision) -> DecisionAnswer:
    activated = None
    if decision.deferred:
        mark = activation_mark(decision.id)
        activated = mark in await store.marks(state.name, [mark])
    return DecisionAnswer(
        id=decision.id,
        experiment=state.name,
        policy=decision.policy,
        assignment=decision.assignment,
        model_version=decision.model_version,
        schema_version=decision.schema_version,
        fallback=decision.facts.fallback,
        activated=activated,
        at=datetime.fromtimestamp(decision.at, UTC),
        key=decision.key,
        context=decision.context,
        ranking=[Ranked(arm=arm.arm, propensity=arm.propensity) for arm in decision.shown],
        slate_propensity=decision.slate,
        slate_log_propensity=decision.slate_log,
        seed=decision.seed,
        candidates=await _candidates(log, state, decision),
        choice_follows=choice_follows(decision),
        same_head=decision.model_version.endswith(f"@{state.position}"),
        learned=await _learned(store, state, decision),
        rules=list(decision.rules),
        relaxed=list(decision.relaxed),
        said=sentences(state, decision),
        reward_by=datetime.fromtimestamp(decision.reward_by, UTC),
        accept_until=datetime.fromtimestamp(decision.accept_until, UTC),
    )


async def _learned(store: Store, state: State, decision: Decision) -> list[LearnedAnswer]:
    """Return the reward learned of each shown arm; an arm that the user did not see has none."""
    arms = [arm.arm for arm in decision.shown]
    marks = await store.marks(state.name, [arm_mark(decision.id, arm) for arm in arms])
    learned = list[LearnedAnswer]()
    for arm in arms:
        mark = marks.get(arm_mark(decision.id, arm))
        if mark is not None and mark.value != ERASED:
            known = read_arm(mark)
            if known.reward is not None:
                more = {"default": known.default, "weight": known.weight}
                learned.append(LearnedAnswer(arm=arm, reward=known.reward, **more))
    return learned


def choice_follows(decision: Decision) -> bool:
    """Say whether the logged probabilities and seed give the shown arm, and those of a slate its
    first arm's propensity. An imported decision has no seed, and they never do."""
    return not is_imported(decision) and is_whole(decision) and not any(check_choice(decision))


async def _candidates(log: Log, state: State, decision: Decision) -> list[CandidateAnswer]:
    """Candidates with probabilities and attributions, in a thread: many of them take long."""
    async with log.replicas.by_name[state.name].lock:  # nothing is folded meanwhile
        return await asyncio.to_thread(
            _attributed, log.replicas.by_name[state.name].state, decision
        )


def _attributed(state: State, decision: Decision) -> list[CandidateAnswer]:
    """Candidates with the attributions of the present head, where it still fits them."""
    known = {arm.arm: arm.propensity for arm in decision.shown}  # of an imported one, perhaps all
    if decision.probabilities:
        known = dict(zip(decision.arms, decision.probabilities, strict=True))
    rows = unexplained(decision.arms)
    decider = decider_of(state, decision)
    if decider is not None and state.schema_version == decision.schema_version:
        try:
            candidates = candidates_of(state, decision)
            context = state.schema.encode_context(decision.context)
        except (KeyError, Invalid):  # an arm was removed, or a known value
            pass
        else:
            shown = [arm.arm for arm in decision.shown]
            with suppress(NotPositiveDefinite, FloatingPointError):
                rows = attributions(decider, context, candidates, shown)
    for place, row in enumerate(rows):
        row.probability, row.untried = known.get(row.arm), place in decision.facts.untried
    return rows
