"""Tables of scores for tests."""

from collections.abc import Sequence

import numpy as np

from service.bandits import rules
from service.bandits.linalg import Index
from service.bandits.ranking import Bounded
from service.bandits.rules import Scores


def table_of(rows: np.ndarray, of: Index) -> Scores:
    """Scores of distinct candidates, (M, U), and the candidate that each arm is like, (K,)."""
    return Scores(rows, of, np.bincount(of, minlength=rows.shape[1]))


def bounds(untried: Sequence[int] = (), epsilon: float = 0.0) -> Bounded:
    """Return what bounds chances: arms to try, and a floor."""

    def bounded(p: np.ndarray, arms: Index) -> np.ndarray:
        tries = np.isin(arms, list(untried)).nonzero()[0]
        return rules.floor(rules.with_tries(p, tries), epsilon)

    return bounded


def by_arm(scores: Scores) -> np.ndarray:
    """Return the scores of all arms, (M, K)."""
    return scores.rows[:, scores.of]
