"""Upper confidence bounds: of `linucb`, `neural_linucb` and `neural_ucb`, and of spreads that other
kinds have: x^T mu + alpha sigma_hat sqrt(x^T S x) (Li et al. 2010; Chu et al. 2011)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from service.bandits.heads import Array, Head
from service.bandits.heads.gaussian import Gaussian
from service.bandits.linalg import Index
from service.bandits.policy import Rule
from service.bandits.rules import highest
from service.bandits.version import Version

BASE_OPTIMISM, NET_OPTIMISM = 0.25, 2.0
"""The 1/4 and, with a net, the k of `anytime`."""

ANYTIME = 2.0
"""About how far `anytime` grows: the width that arms are searched with."""


class UpperBound(Rule):
    """The upper confidence bound.

    alpha     None where it is `anytime`
    net       the features are of a net that was fitted to the same rewards
    per_arm   each row has a head of its own
    """

    draws = 1

    def __init__(
        self, alpha: float | Literal["anytime"], *, net: bool = False, per_arm: bool = False
    ) -> None:
        self.alpha = None if alpha == "anytime" else alpha
        self.net, self.per_arm = net, per_arm
        self.away = ANYTIME if self.alpha is None else self.alpha

    def scores(self, version: Version, rows: Array, phi: Array, arms: Sequence[str]) -> Array:
        head = version.head
        assert head is not None
        if (shared := head.posterior) is not None:
            return shared.level + self._of_shared(version, shared, phi, min(phi.shape))[None]
        return self.bound(head, phi, version.mean(phi, arms), head.width(phi, arms), arms)

    def batches(self, version: Version) -> bool:
        assert version.head is not None
        return version.head.posterior is not None and not version.predicts

    def shares(
        self, version: Version, rows: Array, phi: Array, arms: Sequence[str], like: Index
    ) -> Array:
        assert version.head is not None
        shared = version.head.posterior
        if shared is None:
            return super().shares(version, rows, phi, arms, like)
        scores = self._of_shared(version, shared, phi, min(len(like), len(shared.mean)))
        return highest(scores.reshape(-1, len(like)), like)

    def _of_shared(
        self, version: Version, shared: Gaussian, phi: Array, rank: int
    ) -> Array:  # (n,)
        """Score rows that share their weights, above the level: widths and means in one product."""
        assert version.head is not None
        (mean, variance), noise = shared.spread(phi), shared.noise
        if self.alpha is not None:
            width = np.sqrt(variance)
            width *= self.alpha * noise
        else:
            held = version.head.held
            bonus = np.log1p(variance * (held / rank))  # the terms of `anytime`, in place
            if self.net:
                bonus *= NET_OPTIMISM
            bonus += BASE_OPTIMISM
            bonus *= variance
            width = np.sqrt(bonus, out=bonus)
            width *= noise
        width += mean
        if version.predicts:
            width += version.offset(phi)
        return np.asarray(width)

    def bound(
        self, head: Head, phi: Array, mean: Array, width: Array, arms: Sequence[str]
    ) -> Array:  # (1, n)
        """Return mean + alpha width of any head."""
        if self.alpha is not None:
            return np.atleast_2d(mean + self.alpha * width)
        return np.atleast_2d(mean + self.anytime(head, min(phi.shape), width, arms) * width)

    def anytime(self, head: Head, rank: int, width: Array, arms: Sequence[str]) -> Array:  # (n,)
        """Return alpha of each row, from v = (width / sigma_hat)^2 and its head's n settlements.

            sqrt(1/4 + k log(1 + n v / U))   where U rows share a head (at most its dimensions);
                                             k = 2 on a net's features, else 1
            sqrt(1 + log(1 + n v))           where each row has a head of its own

        As in the indices of Audibert & Bubeck 2009 (MOSS) and Lattimore 2015; docs/decisions/6 has
        the reasons and what was measured.
        """
        held, noise = head.evidence(arms)
        ratio = held * np.square(width / noise)
        if self.per_arm:
            return np.asarray(np.sqrt(1.0 + np.log1p(ratio)))
        optimism = NET_OPTIMISM if self.net else 1.0
        return np.asarray(np.sqrt(BASE_OPTIMISM + optimism * np.log1p(ratio / rank)))
