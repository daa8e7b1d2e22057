"""Tables of scores for tests."""

import numpy as np

from service.bandits.linalg import Index
from service.bandits.rules import Scores


def table_of(rows: np.ndarray, of: Index) -> Scores:
    """Scores of distinct candidates, (M, U), and the candidate that each arm is like, (K,)."""
    return Scores(rows, of, np.bincount(of, minlength=rows.shape[1]))


def by_arm(scores: Scores) -> np.ndarray:
    """Return the scores of all arms, (M, K)."""
    return scores.rows[:, scores.of]
