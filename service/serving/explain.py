"""What a decision was and why: its row, re-derived as far as the present state allows."""

import asyncio
from datetime import UTC, datetime

from service.errors import Invalid, NotFound
from service.log.log import Log
from service.log.stores import Store
from service.naming import quoted
from service.security.access import Grant, expect_granted, granted
from service.serving.attributions import attributions
from service.serving.marks import ERASED, activation_mark, arm_mark, read_arm
from service.serving.rederive import candidates_of, check_choice, is_imported, is_whole
from service.state.events import Decision, decode_decision
from service.state.fold import State

Json = dict[str, object]

UNKNOWN = dict.fromkeys(("mean", "width", "bonus", "draw_share", "moved", "members"))
"""What an answer has of a candidate without attributions: every field, as null."""


async def explain(
    log: Log, store: Store, id: str, experiment: str | None, grant: Grant | None = None
) -> Json:
    """Raises NotFound, Forbidden, Quarantined. experiment: None searches all."""
    if experiment is not None:
        expect_granted(grant, experiment)
    for name, state in log.replicas.states.items():
        if experiment in (None, name) and granted(grant, name):
            row = await store.decision(name, id)
            if row is not None:
                return await _explain(log, store, state, decode_decision(row))
    for name in log.replicas.quarantined:
        if experiment in (None, name) and granted(grant, name):
            log.replicas.state(name)  # raises: it may be there
    raise NotFound(f"no experiment has a decision {quoted(id)}", path="id")


async def _explain(log: Log, store: Store, state: State, decision: Decision) -> Json:
    activated = None
    if decision.deferred:
        mark = activation_mark(decision.id)
        activated = mark in await store.marks(state.name, [mark])
    return {
        "id": decision.id,
        "experiment": state.name,
        "policy": decision.policy,
        "assignment": decision.assignment,
        "model_version": decision.model_version,
        "schema_version": decision.schema_version,
        "activated": activated,
        "at": datetime.fromtimestamp(decision.at, UTC),
        "key": decision.key,
        "context": decision.context,
        "ranking": [{"arm": arm.arm, "propensity": arm.propensity} for arm in decision.shown],
        "slate_propensity": decision.slate,
        "slate_log_propensity": decision.slate_log,
        "seed": decision.seed,
        "candidates": await _candidates(log, state, decision),
        "choice_follows": choice_follows(decision),
        "same_head": decision.model_version.endswith(f"@{state.position}"),
        "learned": await _learned(store, state, decision),
        "reward_by": datetime.fromtimestamp(decision.reward_by, UTC),
        "accept_until": datetime.fromtimestamp(decision.accept_until, UTC),
    }


async def _learned(store: Store, state: State, decision: Decision) -> list[Json]:
    """Return the reward learned of each shown arm; an arm that the user did not see has none."""
    arms = [arm.arm for arm in decision.shown]
    marks = await store.marks(state.name, [arm_mark(decision.id, arm) for arm in arms])
    learned: list[Json] = []
    for arm in arms:
        mark = marks.get(arm_mark(decision.id, arm))
        if mark is not None and mark.value != ERASED:
            known = read_arm(mark)
            if known.reward is not None:
                more = {"default": known.default, "weight": known.weight}
                learned.append({"arm": arm, "reward": known.reward, **more})
    return learned


def choice_follows(decision: Decision) -> bool:
    """Whether the logged probabilities and seed give the shown arm, and those of a slate its first
    arm's propensity. False for an imported decision, which has no seed."""
    return not is_imported(decision) and is_whole(decision) and not any(check_choice(decision))


async def _candidates(log: Log, state: State, decision: Decision) -> list[Json]:
    """Candidates with probabilities and attributions, in a thread: many of them take long."""
    async with log.replicas.by_name[state.name].lock:  # nothing is folded meanwhile
        return await asyncio.to_thread(
            _attributed, log.replicas.by_name[state.name].state, decision
        )


def _attributed(state: State, decision: Decision) -> list[Json]:
    """Candidates with the attributions of the present head, where it still fits them."""
    known = {arm.arm: arm.propensity for arm in decision.shown}  # of an imported one, perhaps all
    if decision.probabilities:
        known = dict(zip(decision.arms, decision.probabilities, strict=True))
    found: list[Json] = [
        {"arm": arm, "probability": known.get(arm), "untried": place in decision.untried, **UNKNOWN}
        for place, arm in enumerate(decision.arms)
    ]
    learner = state.learners.get(decision.policy)
    if learner is None or state.schema_version != decision.schema_version:
        return found
    try:
        candidates = candidates_of(state, decision)
        context = state.schema.encode_context(decision.context)
    except (KeyError, Invalid):  # an arm was removed, or a known value
        return found
    own = attributions(learner, context, candidates, [arm.arm for arm in decision.shown])
    return [{**row, **each} for row, each in zip(found, own, strict=True)]
