"""Thompson sampling (Agrawal & Goyal 2013): the scores of M posterior draws, and their wins."""

from collections.abc import Sequence

import numpy as np

from service.bandits.heads import Array
from service.bandits.linalg import Index
from service.bandits.policy import Rule
from service.bandits.version import Version


class ThompsonSampling(Rule):
    """Thompson sampling.

    draws   of the bank, or members of an ensemble
    scale   how many times as far from the mean the draws lie as the posterior has them
    """

    explores = True

    def __init__(self, draws: int, scale: float = 1.0) -> None:
        self.draws, self.scale, self.away = draws, scale, scale

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        assert version.head is not None
        draws = version.head.draw(phi, arms, version.bank)
        if version.predicts:
            draws = draws + version.offset(phi)
        if self.scale == 1.0:
            return draws
        center = draws.mean(axis=0)
        return np.asarray(center + self.scale * (draws - center))

    def batches(self, version: Version) -> bool:
        assert version.head is not None
        return version.head.posterior is not None and not version.predicts

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        assert version.head is not None
        if not version.predicts:
            found = version.head.win_shares(phi, arms, like, version.bank, self.scale)
            if found is not None:
                return found
        return super().shares(version, rows, phi, arms, like)
