"""Scores and choices: everything that chance has a part in."""

from collections.abc import Sequence
from functools import partial
from math import fsum, log
from random import Random

import numpy as np

from service.bandits import ranking, rules
from service.bandits.candidates import Candidates
from service.bandits.constraints import Bounds, Constrained, clip, fill
from service.bandits.constraints.slots import SlateLimits
from service.bandits.linalg import Index
from service.bandits.rules import Scores, Slate
from service.errors import NoFiniteScores, NotPositiveDefinite
from service.features.schema import Array
from service.state.decider import Decider
from service.state.decisions import NO_FACTS, DecisionFacts


def decide(
    decider: Decider,
    context: Array,
    candidates: Candidates,
    top_k: int,
    seed: int,
    facts: DecisionFacts = NO_FACTS,
    limits: SlateLimits | None = None,
) -> tuple[Array, Slate]:
    """Return the probabilities of the first slot, and the arms that are shown.

    facts: what bounds the probabilities beside the state; limits: what rules allow. Each slot is
    drawn from the probabilities of the arms that are left, by the seed that is logged. Raises
    NoFiniteScores.
    """
    if top_k == 1 and limits is None:
        return decide_batch(decider, [context], candidates, [seed], facts)[0]
    try:
        scores = rules.expect_finite(decider.score(context, candidates))
        if limits is not None:
            return _within(limits, decider, scores, top_k, seed, facts.untried)
        return ranking.draw(scores, top_k, partial(_bounded, decider, facts), seed)
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(decider.name) from fault


def decide_batch(
    decider: Decider,
    contexts: Sequence[Array],
    candidates: Candidates,
    seeds: Sequence[int],
    facts: DecisionFacts = NO_FACTS,
    limits: SlateLimits | None = None,
) -> list[tuple[Array, Slate]]:
    """`decide` for one arm of each context over the same candidates.

    contexts: (context.width,) each. Raises NoFiniteScores.
    """
    if limits is not None:
        return [
            decide(decider, context, candidates, 1, seed, facts, limits)
            for context, seed in zip(contexts, seeds, strict=True)
        ]
    try:
        chances = decider.policy.propensities(decider.version, np.array(contexts), candidates)
        p = rules.expect_whole(_bounded(decider, facts, chances))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(decider.name) from fault
    return [(own, _draw(own, seed)) for own, seed in zip(p, seeds, strict=True)]


def _within(
    limits: SlateLimits,
    decider: Decider,
    scores: Scores,
    size: int,
    seed: int,
    untried: tuple[int, ...],
) -> tuple[Array, Slate]:
    """`decide` within limits. Raises FloatingPointError where scores are no numbers."""
    rng = Random(seed) if size > 1 else None  # it takes as long as a row of scores
    point = rules.point_of(seed)
    first, left = np.zeros(len(scores.of)), np.arange(len(scores.of))
    shown, propensities = list[int](), list[float]()
    held, relaxed = set[int](), set[int]()
    for number in range(1, size + 1):
        slot = limits.slot(number, size, left, shown, untried)
        if slot is None:
            break  # counts leave no more arms
        bounds = slot.bounds.explored(decider.epsilon)
        p, yielded = _chances(scores.among(slot.arms), bounds)
        if number == 1:
            first[slot.arms] = rules.expect_whole(p)
        place = rules.choose(p, point)
        arm = int(slot.arms[place])
        shown.append(arm)
        propensities.append(float(p[place]))
        held |= slot.holding(bounds, p)
        relaxed.update(slot.relaxed, yielded)
        if rng is not None:
            left, point = left[left != arm], rng.random()
    chance = fsum(map(log, propensities))
    told = tuple(sorted(held)), tuple(sorted(relaxed))
    return first, Slate(shown, propensities, chance, *told)


def _chances(scores: Scores, bounds: Bounds) -> Constrained:  # (n,)
    """Return the chances of arms within bounds: those of the rule's formula, clipped, or the draws
    of the scores, filled."""
    if scores.formula is None:
        return fill(scores.rows[:, scores.of], bounds)
    return clip(scores.formula(scores.rows[0], scores.counts)[scores.of], bounds)


def _bounded(
    decider: Decider, facts: DecisionFacts, p: Array, arms: Index | None = None
) -> Array:  # (..., n)
    """Return the probabilities of arms from the chances that the policy's rule gives them. arms:
    their places among the candidates; None: they are all."""
    untried: Sequence[int] | Index = facts.untried
    if arms is not None and facts.untried:
        tried = np.array(facts.untried)
        among = np.zeros(1 + max(arms.max(), tried.max()), bool)  # np.isin takes five times as long
        among[tried] = True
        untried = among[arms].nonzero()[0]
    return rules.floor(rules.with_tries(p, untried), decider.epsilon)


def _draw(p: Array, seed: int) -> Slate:
    index = rules.choose(p, rules.point_of(seed))
    propensity = float(p[index])
    return Slate([index], [propensity], log(propensity))
