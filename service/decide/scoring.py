"""Scores and choices: everything that chance has a part in."""

from collections.abc import Sequence
from functools import partial
from math import log

import numpy as np

from service.bandits import ranking, rules
from service.bandits.candidates import Candidates
from service.bandits.linalg import Index
from service.bandits.rules import Slate
from service.errors import NoFiniteScores, NotPositiveDefinite
from service.features.schema import Array
from service.state.decisions import NO_FACTS, DecisionFacts
from service.state.learner import Learner


def decide(
    learner: Learner,
    context: Array,
    candidates: Candidates,
    top_k: int,
    seed: int,
    facts: DecisionFacts = NO_FACTS,
) -> tuple[Array, Slate]:
    """Return the probabilities of the first slot, and the arms that are shown.

    facts: what bounds the probabilities beside the state. Each slot is drawn from the probabilities
    of the arms that are left, by the seed that is logged. Raises NoFiniteScores.
    """
    if top_k == 1:
        return decide_batch(learner, [context], candidates, [seed], facts)[0]
    try:
        scores = learner.score(context, candidates)
        return ranking.draw(scores, top_k, partial(_bounded, learner, facts), seed)
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault


def decide_batch(
    learner: Learner,
    contexts: Sequence[Array],
    candidates: Candidates,
    seeds: Sequence[int],
    facts: DecisionFacts = NO_FACTS,
) -> list[tuple[Array, Slate]]:
    """`decide` for one arm of each context over the same candidates.

    contexts: (context.width,) each. Raises NoFiniteScores.
    """
    try:
        chances = learner.policy.propensities(learner.active, np.array(contexts), candidates)
        p = rules.expect_whole(_bounded(learner, facts, chances))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault
    return [(own, _draw(own, seed)) for own, seed in zip(p, seeds, strict=True)]


def _bounded(
    learner: Learner, facts: DecisionFacts, p: Array, arms: Index | None = None
) -> Array:  # (..., n)
    """Return the probabilities of arms from the chances that the policy's rule gives them. arms:
    their places among the candidates; None: they are all."""
    untried: Sequence[int] | Index = facts.untried
    if arms is not None and facts.untried:
        tried = np.array(facts.untried)
        among = np.zeros(1 + max(arms.max(), tried.max()), bool)  # np.isin takes five times as long
        among[tried] = True
        untried = among[arms].nonzero()[0]
    return rules.floor(rules.with_tries(p, untried), learner.epsilon)


def _draw(p: Array, seed: int) -> Slate:
    index = rules.choose(p, rules.point_of(seed))
    propensity = float(p[index])
    return Slate([index], [propensity], log(propensity))
