"""From contexts to choices: everything that chance has a part in."""

from collections.abc import Sequence
from math import log
from random import Random

import numpy as np

from service.bandits import ranking, rules
from service.bandits.candidates import Candidates
from service.bandits.rules import Slate
from service.errors import NoFiniteScores, NotPositiveDefinite
from service.features.schema import Array
from service.state.learner import Learner


def decide(
    learner: Learner,
    context: Array,
    candidates: Candidates,
    top_k: int,
    seed: int,
    untried: Sequence[int] = (),
) -> tuple[Array, Slate]:
    """Probabilities of the first slot, and the arms that are shown.

    untried: candidates that are tried for their own sake (`Learner.untried`).

    The draw is from the probabilities that are logged, by the seed that is logged. Raises
    NoFiniteScores.
    """
    if top_k == 1:
        return decide_batch(learner, [context], candidates, [seed], untried)[0]
    try:
        scores = rules.with_tried_rows(learner.score(context, candidates), untried)
        p = rules.expect_whole(rules.floor(rules.probabilities(scores), learner.epsilon))
        return p, ranking.rank(scores, top_k, learner.epsilon, Random(seed))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault


def decide_batch(
    learner: Learner,
    contexts: Sequence[Array],
    candidates: Candidates,
    seeds: Sequence[int],
    untried: Sequence[int] = (),
) -> list[tuple[Array, Slate]]:
    """`decide` for one arm of each context over the same candidates.

    contexts: (context.width,) each. Raises NoFiniteScores.
    """
    try:
        chances = learner.policy.propensities(learner.active, np.array(contexts), candidates)
        chances = rules.with_tries(chances, untried)
        p = rules.expect_whole(rules.floor(chances, learner.epsilon))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault
    return [(own, _draw(own, seed)) for own, seed in zip(p, seeds, strict=True)]


def _draw(p: Array, seed: int) -> Slate:
    index = int(p.argmax())
    if p[index] < 1:  # a sure choice needs no draw, which takes longer than all this
        index = rules.choose(p, rules.point_of(seed))
    propensity = float(p[index])
    return Slate([index], [propensity], log(propensity))
