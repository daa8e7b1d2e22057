"""Decisions of one policy over the same candidates, a batch of contexts at once."""

from collections.abc import Sequence

import numpy as np

from service.bandits.policies import rules
from service.bandits.policies.candidates import Candidates
from service.bandits.policies.rules import Slate
from service.definition.features import Array
from service.errors import NoFiniteScores, NotPositiveDefinite
from service.state.learner import Learner


def decide(
    learner: Learner, contexts: Sequence[Array], candidates: Candidates, seeds: Sequence[int]
) -> list[tuple[Array, Slate]]:
    """As `engine.decide` of each, for one arm: probabilities, and what is shown.

    contexts: (context.width,) each. Raises NoFiniteScores.
    """
    try:
        chances = learner.propensities(np.array(contexts), candidates)
        p = rules.expect_whole(rules.floor(chances, learner.settings.epsilon))
    except (NotPositiveDefinite, FloatingPointError) as fault:
        raise NoFiniteScores(learner.name) from fault
    chosen = rules.choose_each(p, [rules.point_of(seed) for seed in seeds])
    shown = p[np.arange(len(p)), chosen].tolist()
    return [
        (own, Slate([index], [propensity], propensity))
        for own, index, propensity in zip(p, chosen.tolist(), shown, strict=True)
    ]
