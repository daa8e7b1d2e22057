"""What one decision was and why: its row, re-derived as far as the present state allows."""

import json
from datetime import UTC, datetime
from typing import Any

from service.access import expect_granted, granted
from service.errors import Invalid, NotFound
from service.events import Decision, decode_decision
from service.fold import State
from service.journal import Journal
from service.policies.reasons import reasons
from service.rederive import candidates_of, check_choice, is_imported, is_whole
from service.settlement import ERASED, activation_mark, link_mark


async def explain(journal: Journal, id: str, experiment: str | None) -> dict[str, Any]:
    """Raises NotFound, Forbidden. experiment: None looks through all."""
    if experiment is not None:
        expect_granted(experiment)
    for name, state in journal.states.items():
        if experiment in (None, name) and granted(name):
            row = await journal.store.decision(name, id)
            if row is not None:
                return await _explain(journal, state, decode_decision(row))
    raise NotFound("no experiment has a decision of this id", path="id")


async def _explain(journal: Journal, state: State, decision: Decision) -> dict[str, Any]:
    learned = await _learned(journal, state, decision)
    return {
        "id": decision.id,
        "experiment": state.name,
        "policy": decision.policy,
        "assignment": decision.assignment,
        "model_version": decision.model_version,
        "schema_version": decision.schema_version,
        "activated": await _activated(journal, state, decision),
        "at": datetime.fromtimestamp(decision.at, UTC),
        "context": decision.context,
        "ranking": [{"arm": arm.arm, "propensity": arm.propensity} for arm in decision.shown],
        "slate_propensity": decision.slate,
        "seed": decision.seed,
        "candidates": _candidates(state, decision),
        "choice_follows": choice_follows(decision),
        "same_head": decision.model_version.endswith(f"@{state.position}"),
        "learned": [
            {"arm": arm, "reward": reward, "default": default}
            for arm, (reward, default) in learned.items()
        ],
        "reward_by": datetime.fromtimestamp(decision.reward_by, UTC),
        "accept_until": datetime.fromtimestamp(decision.accept_until, UTC),
    }


async def _activated(journal: Journal, state: State, decision: Decision) -> bool | None:
    """Whether a deferred decision was shown; None: it was not deferred."""
    if not decision.deferred:
        return None
    mark = activation_mark(decision.id)
    return mark in await journal.store.marks(state.name, [mark])


async def _learned(
    journal: Journal, state: State, decision: Decision
) -> dict[str, tuple[float, bool]]:
    """What has been learned of each shown arm, and whether it is the default: its last link."""
    learned: dict[str, tuple[float, bool]] = {}
    arms, link = {arm.arm for arm in decision.shown}, 0
    while arms:
        marks = {link_mark(decision.id, link, arm): arm for arm in arms}
        found = await journal.store.marks(state.name, list(marks))
        for mark, value in found.items():
            if value.value == ERASED:
                continue
            reward, default = json.loads(value.value)
            learned[marks[mark]] = reward, default
        arms, link = {marks[mark] for mark in found}, link + 1
    return learned


def choice_follows(decision: Decision) -> bool:
    """Whether the seed draws the shown arm from the logged probabilities. For a slate, whether its
    first arm has the probability that is logged for it. An imported one has no seed: false."""
    if is_imported(decision):
        return False
    return is_whole(decision) and not any(check_choice(decision))


def _candidates(state: State, decision: Decision) -> list[dict[str, Any]]:
    """Probability of each candidate, with the reasons that the head as it is now would have."""
    known = {arm.arm: arm.propensity for arm in decision.shown}  # of an imported one, perhaps all
    if decision.probabilities:
        known = dict(zip(decision.arms, decision.probabilities, strict=True))
    found = [
        {"arm": arm, "probability": known.get(arm), "mean": None, "width": None}
        for arm in decision.arms
    ]
    learner = state.learners.get(decision.policy)
    if learner is None or state.schema_version != decision.schema_version:
        return found
    try:
        candidates = candidates_of(state, decision)
        context = state.schema.encode_context(decision.context)
    except (KeyError, Invalid):  # an arm was removed, or a known value
        return found
    explained = reasons(learner, context, candidates, [arm.arm for arm in decision.shown])
    return [{**row, **own} for row, own in zip(found, explained, strict=True)]
