"""Clicks counted by arm, without a context."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from service.bandits.posterior import win_probabilities
from service.bandits.posterior.base import (
    KEPT_DRAWS,
    Array,
    Bank,
    HeadHealth,
    NameIndex,
    Observation,
    pack_names,
    unpack_names,
)
from service.bandits.posterior.rows import Index
from service.bandits.posterior.win_probabilities import TIE

QUANTILES = 2**17
"""Quantiles that a table of draws may cost: 256 different counts at 512 draws, 30 ms, once."""

FEW = 16
"""Changed arms up to which only the draws that they touch are counted again."""


class _WinCache:
    """What was counted last.

    shares   (n,) of the draws that each arm won
    table    (n, M) draws of each arm; None where it was not made
    best     (M,) largest of each draw
    pairs    arm and draw of each win, by draw
    """

    def __init__(self, arms: Sequence[str], bank: Bank, shares: Array) -> None:
        self.arms, self.bank, self.shares = arms, bank, shares
        self.table: Array | None = None
        self.best = np.empty(0)
        self.pairs = (np.empty(0, np.intp), np.empty(0, np.intp))

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {arm: row for row, arm in enumerate(self.arms)}

    def count(self) -> None:
        assert self.table is not None
        self.best = self.table.max(axis=0)
        self.pairs = win_probabilities.winners(self.table)
        self._share()

    def replace(self, arm: str, drawn: Array) -> npt.NDArray[np.bool_]:  # (M,) -> (M,)
        """Draws that the arm won before, or wins now."""
        assert self.table is not None
        row, least = self.table[self.row_of[arm]], self.best - TIE * np.abs(self.best)
        touched = (row >= least) | (drawn >= least)
        row[:] = drawn
        return np.asarray(touched)

    def recount(self, touched: npt.NDArray[np.bool_]) -> None:  # (M,)
        assert self.table is not None
        draws, (rows, won) = touched.nonzero()[0], self.pairs
        columns = self.table[:, draws]
        self.best[draws] = columns.max(axis=0)
        fresh, which = win_probabilities.winners(columns)
        stay = ~touched[won]
        rows, won = np.concatenate([rows[stay], fresh]), np.concatenate([won[stay], draws[which]])
        order = win_probabilities.by_draw(won)
        self.pairs = rows[order], won[order]
        self._share()

    def _share(self) -> None:
        rows, draws = self.pairs
        alone = np.ones(len(self.arms), np.intp)
        self.shares = win_probabilities.shares(draws, rows, alone, self.bank.draws)


def _distinct(rows: Index, count: int) -> Index:
    """Those of `count` rows that are among these, rising: np.unique without a sort."""
    found = np.zeros(count, bool)
    found[rows] = True
    return found.nonzero()[0]


class BetaHead:
    """Clicks and misses of each arm, Beta(1, 1) before the first; the context has no part.

    A reward between 0 and 1 counts as that share of a click.
    """

    def __init__(self) -> None:
        self._rows = NameIndex()
        self._table = np.ones((4, 2))  # alpha, beta; rows not in use, and row 0, are the prior's
        self._drawn: dict[str, tuple[Bank, Array]] = {}
        self._most = np.full(4, np.nan)  # the largest draw of each arm, where it is known
        self._draws = 0  # of the bank that it is of
        self._won: _WinCache | None = None
        self._changed: set[str] = set()  # arms whose counts changed since

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
        if self._won is not None:
            self._changed.add(arm)

    def observe(self, row: Observation) -> None:
        self._add(row.arm, row.reward, 1 - row.reward)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        self._add(row.arm, left * (row.reward - was), left * (was - row.reward))

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        self._add(row.arm, -left * row.reward, -left * (1 - row.reward))
        counts = self._table[self._rows.by_name[row.arm]]
        np.maximum(counts, 1.0, out=counts)

    def decay(self, share: float) -> None:
        counts = self._counts
        counts[:] = share * counts + (1 - share)
        self._forget_draws()

    def _forget_draws(self) -> None:
        self._drawn.clear()
        self._most[:] = np.nan
        self._won = None
        self._changed.clear()

    @property
    def _counts(self) -> Array:  # (arms, 2) alpha, beta, in the order of their first rewards
        return self._table[1 : len(self._rows)]

    def _of(self, arms: Sequence[str]) -> Array:  # (n, 2)
        return self._table[self._rows.of(arms)]

    stale = 0

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
        if won is None or won.arms is not arms or won.bank is not bank:
            self._won = won = _WinCache(arms, bank, self._count(arms, bank))
        elif won.table is not None and len(self._changed) <= FEW:
            self._recount(won)
        elif self._changed:  # the same arms again: from now on only what changes is worked out
            won.table = self._all_draws(arms, bank)
            if won.table is None:
                won.shares = self._count(arms, bank)
            else:
                won.count()
        self._changed.clear()
        return won.shares.copy()

    def _count(self, arms: Sequence[str], bank: Bank) -> Array:  # (n,)
        return win_probabilities.independent(bank.places(arms), self._quantiles_of(arms, bank))

    def _all_draws(self, arms: Sequence[str], bank: Bank) -> Array | None:  # (n, M)
        """By draw; None where these are too many. Quantiles of counts that several arms have are
        worked out once."""
        if len(arms) * bank.draws > KEPT_DRAWS:
            return None
        pairs = self._of(arms).view(np.complex128)[:, 0]
        counts, of = np.unique(pairs, return_inverse=True)
        if len(counts) * bank.draws > QUANTILES:
            return None
        quantiles = betaincinv(counts.real[:, None], counts.imag[:, None], bank.uniforms)
        return np.ascontiguousarray(bank.spread(arms, quantiles[of]).T)

    def _recount(self, won: "_WinCache") -> None:
        """After the counts of a few arms changed: draws that none of them won before, or wins now,
        are as they were."""
        touched = np.zeros(won.bank.draws, bool)
        for arm in self._changed & won.row_of.keys():
            drawn = np.empty(won.bank.draws)
            drawn[won.bank.places([arm])[0]] = betaincinv(*self._beta(arm), won.bank.uniforms)
            touched |= won.replace(arm, drawn)
        if touched.any():
            won.recount(touched)

    def _quantiles_of(self, arms: Sequence[str], bank: Bank) -> win_probabilities.Value:
        rows, uniforms, table = self._rows.of(arms), bank.uniforms, self._table
        if self._draws != bank.draws:
            self._draws = bank.draws
            self._most[:] = np.nan
        met = _distinct(rows, len(table))
        stale = met[np.isnan(self._most[met])]
        if len(stale):
            self._most[stale] = betaincinv(*table[stale].T, uniforms[-1])

        def value(active: Index, start: int, stop: int) -> Array:
            own = rows[active]
            if start == len(uniforms) - 1:
                return np.asarray(self._most[own][:, None])
            met = _distinct(own, len(table))
            pairs = table[met].view(np.complex128)[:, 0]  # sorted in a third of the time
            counts, of = np.unique(pairs, return_inverse=True)
            quantiles = betaincinv(counts.real[:, None], counts.imag[:, None], uniforms[start:stop])
            place = np.empty(len(table), np.intp)
            place[met] = of
            return np.asarray(quantiles[place[own]])

        return value

    def distrust(self, factor: float) -> None:
        """There is no noise to be learned."""

    def health(self) -> HeadHealth:
        totals = self._counts.sum(axis=1)
        if not len(totals):
            totals = np.array([2.0])
        held = float(totals.sum()) - 2 * len(totals)
        least, most = float(totals.min()), float(totals.max())
        return HeadHealth(least, most / least, max(held, 0.0), 0.0)

    def arrays(self) -> dict[str, Array]:
        return {"arms": pack_names(self._rows.by_name), "counts": self._counts.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._rows, counts = NameIndex(unpack_names(arrays["arms"])), arrays["counts"]
        self._table = np.ones((2 * len(counts) + 4, 2))
        self._table[1 : len(counts) + 1] = counts
        self._most = np.full(len(self._table), np.nan)
        self._forget_draws()
