"""The rule of `greedy`, `epsilon_greedy` and `static`."""

from collections.abc import Sequence

import numpy as np

from service.bandits.heads import Array, RidgeHead
from service.bandits.linalg import Index
from service.bandits.policy import Rule
from service.bandits.rules import highest
from service.bandits.version import Version


class BestMean(Rule):
    """The highest mean; ties share equally."""

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return np.atleast_2d(version.mean(phi, arms))

    def batches(self, version: Version) -> bool:
        return version.head is None or isinstance(version.head, RidgeHead)

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        head = version.head
        if head is None:
            scores = version.offset(phi)
        elif isinstance(head, RidgeHead):
            scores = phi.dot(head.solved)
        else:
            return super().shares(version, rows, phi, arms, like)
        return highest(scores.reshape(-1, len(like)), like)
