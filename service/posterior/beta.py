"""Clicks counted by arm, without a context."""

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from service.posterior import wins
from service.posterior.base import (
    KEPT_DRAWS,
    Array,
    Bank,
    Health,
    Rows,
    pack_names,
    unpack_names,
)
from service.posterior.wins import Index


class BetaHead:
    """Clicks and misses of each arm, Beta(1, 1) before the first; the context is not looked at.

    A reward between 0 and 1 counts as that share of a click.
    """

    def __init__(self) -> None:
        self._rows = Rows()
        self._table = np.ones((4, 2))  # alpha, beta; rows not in use, and row 0, are the prior's
        self._drawn: dict[str, tuple[Bank, Array]] = {}
        self._most = np.full(4, np.nan)  # the largest draw of each arm, where it is known
        self._draws = 0  # of the bank that it is of
        self._won: tuple[Sequence[str], Bank, Array] | None = None

    def _beta(self, arm: str) -> Array:  # (2,) alpha, beta
        return np.asarray(self._table[self._rows.by_name.get(arm, 0)])

    def _add(self, arm: str, clicks: float, misses: float) -> None:
        row = self._rows.add(arm)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.ones_like(self._table)])
            self._most = np.concatenate([self._most, np.full_like(self._most, np.nan)])
        self._table[row] += (clicks, misses)
        self._most[row] = np.nan
        self._drawn.pop(arm, None)
        self._won = None

    def observe(self, arm: str, phi: Array, reward: float, key: str = "") -> None:
        self._add(arm, reward, 1 - reward)

    def revise(
        self, arm: str, phi: Array, was: float, reward: float, key: str = "", weight: float = 1.0
    ) -> None:
        self._add(arm, weight * (reward - was), weight * (was - reward))

    def decay(self, share: float) -> None:
        counts = self._counts
        counts[:] = share * counts + (1 - share)
        self._forget_draws()

    def _forget_draws(self) -> None:
        self._drawn.clear()
        self._most[:] = np.nan
        self._won = None

    @property
    def _counts(self) -> Array:  # (arms, 2) alpha, beta, in the order of their first rewards
        return self._table[1 : len(self._rows)]

    def _of(self, arms: Sequence[str]) -> Array:  # (n, 2)
        return self._table[self._rows.of(arms)]

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        counts = self._of(arms)
        return np.asarray(counts[:, 0] / counts.sum(axis=1))

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        mean, total = self.mean(phi, arms), self._of(arms).sum(axis=1)
        return np.asarray(np.sqrt(mean * (1 - mean) / (total + 1)))

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        mean = self.mean(np.empty(0), arms)
        return self._of(arms).sum(axis=1) - 2, np.asarray(np.sqrt(mean * (1 - mean)))

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

    def win_shares(self, arms: Sequence[str], bank: Bank) -> Array:  # (n,)
        """Of the draws, kept until a count changes: no context has a part in them."""
        won = self._won
        if won is None or won[0] is not arms or won[1] is not bank:
            places, value = bank.places(arms), self._quantiles_of(arms, bank)
            won = self._won = arms, bank, wins.independent(places, value)
        return won[2].copy()

    def _quantiles_of(self, arms: Sequence[str], bank: Bank) -> wins.Value:
        rows, uniforms = self._rows.of(arms), bank.uniforms
        if self._draws != bank.draws:
            self._draws = bank.draws
            self._most[:] = np.nan
        met = np.unique(rows)
        stale = met[np.isnan(self._most[met])]
        if len(stale):
            self._most[stale] = betaincinv(*self._table[stale].T, uniforms[-1])

        def value(active: Index, start: int, stop: int) -> Array:
            own = rows[active]
            if start == len(uniforms) - 1:
                return np.asarray(self._most[own][:, None])
            pairs = self._table[own].view(np.complex128)[:, 0]  # sorted in a third of the time
            counts, of = np.unique(pairs, return_inverse=True)
            quantiles = betaincinv(counts.real[:, None], counts.imag[:, None], uniforms[start:stop])
            return np.asarray(quantiles[of])

        return value

    def distrust(self, factor: float) -> None:
        """There is no noise to be learned."""

    def health(self) -> Health:
        totals = self._counts.sum(axis=1)
        if not len(totals):
            totals = np.array([2.0])
        held = float(totals.sum()) - 2 * len(totals)
        least, most = float(totals.min()), float(totals.max())
        return Health(least, most / least, max(held, 0.0), 0.0)

    def arrays(self) -> dict[str, Array]:
        return {"arms": pack_names(self._rows.by_name), "counts": self._counts.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows, counts = Rows(unpack_names(arrays["arms"])), arrays["counts"]
        self._table = np.ones((2 * len(counts) + 4, 2))
        self._table[1 : len(counts) + 1] = counts
        self._most = np.full(len(self._table), np.nan)
        self._forget_draws()
