"""Rules that draw nothing from a posterior: the best mean (`greedy`, `epsilon_greedy`, `static`)
and even chances (`random`)."""

from collections.abc import Sequence

import numpy as np

from service.bandits.policies.policy import Rule
from service.bandits.policies.rules import highest, highest_exactly
from service.bandits.policies.version import Version
from service.bandits.posterior import Array, RidgeHead
from service.bandits.posterior.rows import ExactRows, Index, Rows, safe, slack


class BestMean(Rule):
    """The highest mean; ties share equally."""

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return np.atleast_2d(version.mean(phi, arms))

    def shares(
        self, version: Version, rows: Rows, arms: Sequence[str], like: Index
    ) -> Array | None:
        head = version.head
        if head is None and isinstance(rows, ExactRows):
            return highest(version.offset(rows.phi)[None], like)
        if not isinstance(head, RidgeHead):
            return None
        weights, times = head.solved, rows.times
        if isinstance(rows, ExactRows):
            return highest(rows.phi.dot(weights)[None], like)
        used = weights if times is None else weights * times
        length, size = rows.length, float(np.linalg.norm(used))
        if not (safe(length, length) and safe(size, size)):
            return None
        scores = rows.single.dot(used.astype(np.float32))
        margin = float(slack(len(used), length, np.array(size)))
        found = highest_exactly(scores, margin, rows, like, lambda phi: phi.dot(weights))
        return None if found is None else found[None]


class Uniform(Rule):
    """All tie, and ties share equally."""

    explores = True

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return np.zeros((1, len(phi)))

    def shares(self, version: Version, rows: Rows, arms: Sequence[str], like: Index) -> Array:
        return np.full((1, len(like)), 1.0 / like.sum())
