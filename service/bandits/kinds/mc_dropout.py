"""Dropout as a posterior: one mask is a draw (Gal & Ghahramani 2016)."""

from collections.abc import Sequence

import numpy as np

from service.bandits.heads import Array
from service.bandits.policy import Rule
from service.bandits.ucb import UpperBound
from service.bandits.version import Version


class Masks(Rule):
    """One row a dropout mask, or the mean and the standard deviation over the masks. Rewards since
    the training move all masks alike; before the first training, `untrained` decides.

    bound   None: one mask is drawn
    """

    def __init__(self, untrained: Rule, bound: UpperBound | None) -> None:
        self._untrained, self._bound = untrained, bound
        self.explores, self.draws = untrained.explores, untrained.draws

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        if version.encoder.trained is None:
            return self._untrained.scores(version, rows, phi, arms)
        masked, mean = version.encoder.predict_masked(rows), version.mean(phi, arms)
        if self._bound is None:
            return np.asarray(masked + (mean - masked.mean(axis=0)))
        assert version.head is not None
        return self._bound.bound(version.head, phi, mean, masked.std(axis=0), arms)
