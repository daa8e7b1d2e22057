"""What one decision was and why: its row, re-derived as far as the present state allows."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from service.errors import Invalid, NotFound
from service.log.journal import Journal
from service.log.stores import Store
from service.security.access import Grant, expect_granted, granted
from service.serving.attributions import reasons
from service.serving.chain import ERASED, activation_mark, link_mark, read_link
from service.serving.engine import ASIDE_MS
from service.serving.rederive import candidates_of, check_choice, is_imported, is_whole
from service.state.events import Decision, decode_decision
from service.state.fold import State

AT_ONCE = 50
"""Candidates that are explained on the spot: a few milliseconds."""

UNTOLD = {"mean": None, "width": None, "bonus": None, "draw_share": None, "moved": None}
"""What is said of a candidate where nothing can be."""


async def explain(
    journal: Journal, store: Store, id: str, experiment: str | None, grant: Grant | None = None
) -> dict[str, Any]:
    """Raises NotFound, Forbidden, Quarantined. experiment: None looks through all."""
    if experiment is not None:
        expect_granted(grant, experiment)
    for name, state in journal.states.items():
        if experiment in (None, name) and granted(grant, name):
            row = await store.decision(name, id)
            if row is not None:
                return await _explain(journal, store, state, decode_decision(row))
    for name in journal.quarantined:
        if experiment in (None, name) and granted(grant, name):
            journal.state(name)  # raises: it may be there
    raise NotFound("no experiment has a decision of this id", path="id")


async def _explain(
    journal: Journal, store: Store, state: State, decision: Decision
) -> dict[str, Any]:
    learned = await _learned(store, state, decision)
    return {
        "id": decision.id,
        "experiment": state.name,
        "policy": decision.policy,
        "assignment": decision.assignment,
        "model_version": decision.model_version,
        "schema_version": decision.schema_version,
        "activated": await _activated(store, state, decision),
        "at": datetime.fromtimestamp(decision.at, UTC),
        "key": decision.key,
        "context": decision.context,
        "ranking": [{"arm": arm.arm, "propensity": arm.propensity} for arm in decision.shown],
        "slate_propensity": decision.slate,
        "seed": decision.seed,
        "candidates": await _candidates(journal, state, decision),
        "choice_follows": choice_follows(decision),
        "same_head": decision.model_version.endswith(f"@{state.position}"),
        "learned": [
            {"arm": arm, "reward": reward, "default": default}
            for arm, (reward, default) in learned.items()
        ],
        "reward_by": datetime.fromtimestamp(decision.reward_by, UTC),
        "accept_until": datetime.fromtimestamp(decision.accept_until, UTC),
    }


async def _activated(store: Store, state: State, decision: Decision) -> bool | None:
    """Whether a deferred decision was shown; None: it was not deferred."""
    if not decision.deferred:
        return None
    mark = activation_mark(decision.id)
    return mark in await store.marks(state.name, [mark])


async def _learned(store: Store, state: State, decision: Decision) -> dict[str, tuple[float, bool]]:
    """What has been learned of each shown arm, and whether it is the default: its last link."""
    learned: dict[str, tuple[float, bool]] = {}
    arms, link = {arm.arm for arm in decision.shown}, 0
    while arms:
        marks = {link_mark(decision.id, link, arm): arm for arm in arms}
        found = await store.marks(state.name, list(marks))
        for mark, value in found.items():
            if value.value == ERASED:
                continue
            known = read_link(value)
            if known.reward is None:  # it was not seen
                learned.pop(marks[mark], None)
            else:
                learned[marks[mark]] = known.reward, known.default
        arms, link = {marks[mark] for mark in found}, link + 1
    return learned


def choice_follows(decision: Decision) -> bool:
    """Whether the seed draws the shown arm from the logged probabilities. For a slate, whether its
    first arm has the probability that is logged for it. An imported one has no seed: false."""
    if is_imported(decision):
        return False
    return is_whole(decision) and not any(check_choice(decision))


async def _candidates(journal: Journal, state: State, decision: Decision) -> list[dict[str, Any]]:
    """Probability of each candidate, with the reasons that the head as it is now would have: in
    another thread where they are many, so that no other request waits for them."""
    learner, count = state.learners.get(decision.policy), len(decision.arms)
    ms = 0.0 if learner is None else learner.effort_ms(count, len(decision.shown))
    if count <= AT_ONCE and ms <= ASIDE_MS / 2:
        return _reasoned(state, decision)
    async with journal.live[state.name].lock:  # nothing is folded meanwhile
        return await asyncio.to_thread(_reasoned, journal.live[state.name].state, decision)


def _reasoned(state: State, decision: Decision) -> list[dict[str, Any]]:
    known = {arm.arm: arm.propensity for arm in decision.shown}  # of an imported one, perhaps all
    if decision.probabilities:
        known = dict(zip(decision.arms, decision.probabilities, strict=True))
    found = [{"arm": arm, "probability": known.get(arm), **UNTOLD} for arm in decision.arms]
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
