"""The rule of `greedy`, `epsilon_greedy` and `static`."""

from collections.abc import Sequence

import numpy as np

from service.bandits.heads import Array
from service.bandits.linalg import Index
from service.bandits.policy import Rule
from service.bandits.rules import highest
from service.bandits.version import Version


class BestMean(Rule):
    """The highest mean; ties share equally."""

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        return np.atleast_2d(version.mean(phi, arms))

    def batches(self, version: Version) -> bool:
        return version.head is None or version.head.coefficients is not None

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        if version.head is None:
            means = version.offset(phi)
        elif (coefficients := version.head.coefficients) is not None:
            means = phi.dot(coefficients)
        else:
            means = version.mean(phi, arms)
        return highest(means.reshape(-1, len(like)), like)
