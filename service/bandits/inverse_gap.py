"""The rule of `squarecb`: inverse-gap weighting (Abe & Long 1999; Foster & Rakhlin 2020)."""

from collections.abc import Sequence

import numpy as np

from service.bandits.best_mean import BestMean
from service.bandits.heads import Array
from service.bandits.linalg import Index
from service.bandits.rules import TIE, Formula
from service.bandits.version import Version


class InverseGap(BestMean):
    """An arm's chance falls with the distance of its mean from the best one, and as the head holds
    more settlements.

    scale   c of gamma = c sqrt(n)
    net     rows come from a net, whose last bits depend on how many it sees at once
    """

    explores = True

    def __init__(self, scale: float, *, net: bool) -> None:
        self.scale, self.net = scale, net

    def batches(self, version: Version) -> bool:
        assert version.head is not None
        return version.head.coefficients is not None and not self.net

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        assert version.head is not None
        coefficients = version.head.coefficients
        if coefficients is None:
            return super().scores(version, rows, phi, arms)
        # The bits of a row do not depend on the others.
        return np.asarray(np.vecdot(phi, coefficients)[None])

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        means = self.scores(version, rows, phi, arms).reshape(-1, len(like))
        return inverse_gap(means, like, self._gamma(version))

    def formula(self, version: Version) -> Formula:
        gamma = self._gamma(version)
        return lambda means, like: inverse_gap(means[None], like, gamma)[0]

    def _gamma(self, version: Version) -> float:
        assert version.head is not None
        return float(self.scale * version.head.held**0.5)


def inverse_gap(means: Array, like: Index, gamma: float) -> Array:  # (B, U), (U,) -> (B, U)
    """Return the chance of an arm of each of U kinds: 1 / (K + gamma (K / U) gap) of K arms, and
    what the others leave for the best, which share it evenly. like: arms of each kind.

    With U = K this is the rule as published; arms of one kind share what one arm would have.
    """
    best = means.max(axis=1, keepdims=True)
    p = best - means
    tied = p <= TIE * np.abs(best)
    p *= gamma / len(like)  # in place, as all of this: slates do it in every slot
    p += 1
    p *= like.sum()
    np.divide(1, p, out=p)
    left = p * like
    left[tied] = 0.0
    np.copyto(p, ((1 - left.sum(axis=1)) / tied.dot(like))[:, None], where=tied)
    return np.asarray(p)
