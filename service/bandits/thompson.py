"""Thompson sampling (Agrawal & Goyal 2013): the scores of M posterior draws, and their wins."""

from collections.abc import Sequence

import numpy as np

from service.bandits.heads import Array, BetaHead, DisjointRidgeHead
from service.bandits.heads.gaussian import GaussianHead
from service.bandits.heads.win_probabilities import TABLE
from service.bandits.linalg import Index
from service.bandits.policy import Rule
from service.bandits.version import Version


class ThompsonSampling(Rule):
    """draws: of the bank, or members of an ensemble; scale: how many times as far from the mean
    the draws lie as the posterior has them."""

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
        return isinstance(version.head, GaussianHead) and not version.predicts

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        head, bank, scale = version.head, version.bank, self.scale
        if isinstance(head, GaussianHead) and not version.predicts:
            return head.posterior.win_shares(phi, like, bank, scale)
        if isinstance(head, BetaHead) and scale == 1.0:
            return head.win_shares(arms, bank)[None]
        if isinstance(head, DisjointRidgeHead) and len(arms) * bank.draws > TABLE:
            return head.win_shares(phi, arms, bank, scale)[None]
        return super().shares(version, rows, phi, arms, like)
