"""Clicks counted by arm, without a context."""

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from service.posterior.base import KEPT_DRAWS, Array, Bank, Health, pack_names, unpack_names


class BetaHead:
    """Clicks and misses of each arm, Beta(1, 1) before the first; the context is not looked at.

    A reward between 0 and 1 counts as that share of a click.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Array] = {}
        self._drawn: dict[str, tuple[Bank, Array]] = {}

    def _beta(self, arm: str) -> Array:  # (2,) alpha, beta
        return self._counts.get(arm, np.ones(2))

    def _add(self, arm: str, clicks: float, misses: float) -> None:
        self._counts[arm] = self._beta(arm) + np.array([clicks, misses])
        self._drawn.pop(arm, None)

    def observe(self, arm: str, phi: Array, reward: float, key: str = "") -> None:
        self._add(arm, reward, 1 - reward)

    def revise(
        self, arm: str, phi: Array, was: float, reward: float, key: str = "", weight: float = 1.0
    ) -> None:
        self._add(arm, weight * (reward - was), weight * (was - reward))

    def decay(self, share: float) -> None:
        for arm, counts in self._counts.items():
            self._counts[arm] = share * counts + (1 - share)
        self._drawn.clear()

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        counts = np.array([self._beta(arm) for arm in arms])
        return np.asarray(counts[:, 0] / counts.sum(axis=1))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        mean = self.mean(phi, arms)
        total = np.array([self._beta(arm).sum() for arm in arms])
        return np.asarray(np.sqrt(mean * (1 - mean) / (total + 1)))

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        mean = self.mean(np.empty(0), arms)
        held = np.array([self._beta(arm).sum() - 2 for arm in arms])
        return held, np.asarray(np.sqrt(mean * (1 - mean)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        return np.stack([self._draw_arm(arm, bank) for arm in arms], axis=1)

    def _draw_arm(self, arm: str, bank: Bank) -> Array:  # (M,)
        """Kept until the arm's counts change: a quantile of the Beta costs a microsecond."""
        kept = self._drawn.get(arm)
        if kept is None or kept[0] is not bank:
            if (len(self._drawn) + 1) * bank.draws > KEPT_DRAWS:
                self._drawn.clear()
            alpha, beta = self._beta(arm)
            kept = self._drawn[arm] = bank, betaincinv(alpha, beta, bank.uniform(arm))
        return kept[1]

    def distrust(self, factor: float) -> None:
        """There is no noise to be learned."""

    def health(self) -> Health:
        totals = [float(counts.sum()) for counts in self._counts.values()] or [2.0]
        held = sum(totals) - 2 * len(totals)
        return Health(min(totals), max(totals) / min(totals), max(held, 0.0), 0.0)

    def arrays(self) -> dict[str, Array]:
        return {
            "arms": pack_names(self._counts),
            "counts": np.array(list(self._counts.values())).reshape(-1, 2),
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        counts = zip(unpack_names(arrays["arms"]), arrays["counts"], strict=True)
        self._counts = {arm: count.copy() for arm, count in counts}
        self._drawn.clear()
