"""Clicks counted by arm, without a context."""

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from service.bandits.heads.base import (
    KEPT_DRAWS,
    Array,
    Bank,
    HeadHealth,
    NameIndex,
    Observation,
    Observations,
    pack_names,
    unpack_names,
)
from service.bandits.heads.head import Head
from service.bandits.heads.win_probabilities import TABLE, Value, independent, shares, winners
from service.bandits.linalg import Index, spectrum_of

PRIOR_COUNT = 2.0
"""alpha + beta before the first reward."""


class BetaHead(Head):
    """Clicks and misses of each arm, Beta(1, 1) before the first; the context has no part.

    A reward between 0 and 1 counts as that share of a click.
    """

    standardises = False

    def __init__(self) -> None:
        self._rows = NameIndex()
        self._table = np.ones((4, 2))  # alpha, beta; rows not in use, and row 0, are the prior's
        self._drawn: dict[str, tuple[Bank, Array]] = {}
        self._won: tuple[Sequence[str], Bank, Array] | None = None  # since the last change

    def _beta(self, arm: str) -> Array:  # (2,) alpha, beta
        return np.asarray(self._table[self._rows.by_name.get(arm, 0)])

    def _add(self, arm: str, clicks: float, misses: float) -> None:
        row = self._rows.add(arm)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.ones_like(self._table)])
        self._table[row] += (clicks, misses)
        self._drawn.pop(arm, None)
        self._won = None

    def observe(self, row: Observation) -> None:
        self._add(row.arm, row.weight * row.reward, row.weight * (1 - row.reward))

    def observe_many(self, rows: Observations) -> None:
        places = [self._rows.add(arm) for arm in rows.arms]
        while len(self._rows) > len(self._table):
            self._table = np.concatenate([self._table, np.ones_like(self._table)])
        each = np.stack((rows.weights * rows.rewards, rows.weights * (1 - rows.rewards)), axis=1)
        np.add.at(self._table, places, each)  # one after the other, to the last bit
        for arm in rows.arms:
            self._drawn.pop(arm, None)
        self._won = None

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        left *= row.weight
        self._add(row.arm, left * (row.reward - was), left * (was - row.reward))

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        left *= row.weight
        self._add(row.arm, -left * row.reward, -left * (1 - row.reward))
        counts = self._table[self._rows.by_name[row.arm]]
        np.maximum(counts, 1.0, out=counts)

    def decay(self, share: float) -> None:
        counts = self._counts
        counts[:] = share * counts + (1 - share)
        self._forget_draws()

    def _forget_draws(self) -> None:
        self._drawn.clear()
        self._won = None

    @property
    def _counts(self) -> Array:  # (arms, 2) alpha, beta, in the order of their first rewards
        return self._table[1 : len(self._rows)]

    def _of(self, arms: Sequence[str]) -> Array:  # (n, 2)
        return self._table[self._rows.of(arms)]

    @property
    def held(self) -> float:
        counts = self._counts
        return max(float(counts.sum()) - PRIOR_COUNT * len(counts), 0.0)

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        counts = self._of(arms)
        return np.asarray(counts[:, 0] / counts.sum(axis=1))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        mean, total = self.mean(phi, arms), self._of(arms).sum(axis=1)
        return np.asarray(np.sqrt(mean * (1 - mean) / (total + 1)))

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        mean = self.mean(np.empty(0), arms)
        return self._of(arms).sum(axis=1) - PRIOR_COUNT, np.asarray(np.sqrt(mean * (1 - mean)))

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        return np.array([self._draw_arm(arm, bank) for arm in arms]).T

    def _draw_arm(self, arm: str, bank: Bank) -> Array:  # (M,)
        """Draw for an arm. Draws are kept until its counts change: a quantile of the Beta costs a
        microsecond."""
        kept = self._drawn.get(arm)
        if kept is None or kept[0] is not bank:
            if (len(self._drawn) + 1) * bank.draws > KEPT_DRAWS:
                self._drawn.clear()
            rising = betaincinv(*self._beta(arm), bank.uniforms)
            kept = self._drawn[arm] = bank, bank.spread([arm], rising[None])[:, 0]
        return kept[1]

    def win_shares(
        self, phi: Array, arms: Sequence[str], like: Index, bank: Bank, scale: float
    ) -> Array | None:
        """Count wins. The latest are kept until a count changes: no context has a part in them."""
        if scale != 1.0:
            return None
        won = self._won
        if won is None or won[0] is not arms or won[1] is not bank:
            if len(arms) * bank.draws <= TABLE:
                wins = winners(self.draw(np.empty(0), arms, bank))
                found = shares(wins, np.ones(len(arms), np.intp), bank.draws)
            else:
                found = independent(bank.places(arms), self._quantiles_of(arms, bank))
            won = self._won = arms, bank, found
        return won[2][None].copy()

    def _quantiles_of(self, arms: Sequence[str], bank: Bank) -> Value:
        """Quantiles of equal counts are computed once."""
        pairs, of = np.unique(self._of(arms).view(np.complex128)[:, 0], return_inverse=True)

        def value(active: Index, start: int, stop: int) -> Array:
            met, place = np.unique(of[active], return_inverse=True)
            counts = pairs[met][:, None]
            return np.asarray(
                betaincinv(counts.real, counts.imag, bank.uniforms[start:stop])[place]
            )

        return value

    def distrust(self, factor: float) -> None:
        """There is no noise to be learned."""

    def health(self) -> HeadHealth:
        """Return the health of diag(alpha + beta), a direction an arm that has rewards."""
        totals = self._counts.sum(axis=1)
        spectra = [spectrum_of(totals, PRIOR_COUNT)] if len(totals) else []
        return HeadHealth.of_worst(spectra, PRIOR_COUNT, self.held, 0.0)

    def arrays(self) -> dict[str, Array]:
        return {"arms": pack_names(self._rows.by_name), "counts": self._counts.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows, counts = NameIndex(unpack_names(arrays["arms"])), arrays["counts"]
        self._table = np.ones((2 * len(counts) + 4, 2))
        self._table[1 : len(counts) + 1] = counts
        self._forget_draws()
