"""Thompson sampling (Agrawal & Goyal 2013): a table of M posterior draws, or who wins them."""

from collections.abc import Sequence

import numpy as np

from service.bandits.policies.policy import Rule
from service.bandits.policies.version import Version
from service.bandits.posterior import Array, BetaHead, DisjointRidgeHead, RidgeHead
from service.bandits.posterior.gaussian import GaussianHead
from service.bandits.posterior.rows import ExactRows, Index, Rows

TABLE = 2**17
"""Scores up to which arms with draws of their own are put into a table: 256 arms at 512 draws."""


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
        return isinstance(version.head, RidgeHead) and not version.predicts

    def shares(
        self, version: Version, rows: Rows, arms: Sequence[str], like: Index
    ) -> Array | None:
        head, bank = version.head, version.bank
        if isinstance(head, GaussianHead):
            return head.posterior.win_shares(rows, like, bank, self.scale, version.shift)
        if version.predicts or self.scale != 1.0:
            return None
        if isinstance(head, BetaHead):
            return head.win_shares(arms, bank)[None]
        if isinstance(head, DisjointRidgeHead) and len(arms) * bank.draws > TABLE:
            assert isinstance(rows, ExactRows)
            return head.win_shares(rows.phi, arms, bank)[None]
        return None
