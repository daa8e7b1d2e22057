"""Z in p numbers, and in a sketch of k rows."""

import numpy as np

from service.bandits.gradients import Layout
from service.bandits.posterior.base import Array, Stored
from service.bandits.posterior.gradient_rows import (
    DistinctRows,
    PendingRows,
    Projected,
    Woodbury,
    cholesky,
    seen,
    solve,
)

ROUNDING = 1e-13
"""Eigenvalues under this share of the largest are zero: 128 rows have them exact to about 1e-14."""


class Diagonal:
    """Z_jj = lambda + sum nu J_j^2, nu the number of J's coordinates that are not zero.

    The plain diagonal of Z (Zhou, Li, Gu 2020) spreads |J|^2 = 1 over p coordinates, each against a
    whole lambda: a row has to be seen p times before its width shrinks. With nu the prior width is
    that of the other forms, and n observations of one row leave sum_j J_j^2 / (lambda + n nu
    J_j^2): 1/n in the limit, as theirs. nu = p would count the coordinates that ReLU switched off.
    Memory: 8 p bytes.
    """

    def __init__(self, layout: Layout, ridge: float) -> None:
        self._layout, self._ridge = layout, ridge
        self._sums = np.zeros(layout.parameters)

    def observe(self, row: Array, times: float = 1.0) -> None:
        self._sums += self._squares(row, times)

    def withdraw(self, row: Array, times: float) -> None:
        self._sums = np.maximum(self._sums - self._squares(row, times), 0.0)

    def _squares(self, row: Array, times: float) -> Array:  # (F,) -> (p,)
        squares = np.square(self._layout.dense(row[None])[0])
        squares *= times * np.count_nonzero(squares)
        return np.asarray(squares)

    def covariance(self, rows: Array) -> Array:
        half = self._half(rows)
        return half @ half.T

    def variances(self, rows: Array) -> Array:
        half = self._half(rows)
        return np.asarray(np.einsum("np,np->n", half, half))

    def _half(self, rows: Array) -> Array:  # (n, F) -> (n, p)
        return self._layout.dense(rows) / np.sqrt(self._ridge + self._sums)

    def decay(self, share: float) -> None:
        self._sums *= share

    def spectrum(self) -> tuple[float, float]:
        met = self._sums[self._sums > 0]
        if not len(met):
            return self._ridge, self._ridge
        return self._ridge + float(met.min()), self._ridge + float(met.max())

    def arrays(self) -> dict[str, Stored]:
        return {"sums": self._sums}

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._sums = arrays["sums"].copy()


class _Sketched(Projected):
    """floor I + B^T B by Woodbury: a = L^-1 B J with L L^T = floor I + B B^T; B need not be
    orthogonal."""

    def __init__(self, layout: Layout, floor: float, sketch: Array) -> None:  # B (r, p)
        super().__init__(layout, floor)
        self._sketch = sketch
        inner = sketch @ sketch.T
        inner[np.diag_indices_from(inner)] += floor
        self._factor = cholesky(inner, np.diagonal(inner))

    def project(self, rows: Array) -> Array:  # (n, F) -> (n, r)
        return solve(self._factor, self._sketch @ self.layout.dense(rows).T).T


class LowRank(PendingRows):
    """Z~ = (lambda + alpha) I + B^T B + pending rows: robust frequent directions.

    B holds up to k rows, the buffer up to k distinct rows with counts, exact until it is full. Then
    B and the buffer are rotated to their principal directions, the squared singular values fall by
    delta = the (k+1)-th, which leaves k rows, and alpha rises by delta / 2 (Ghashami, Liberty,
    Phillips, Woodruff 2016; Luo et al. 2019, algorithm 1). Hence, without decays,
        |J^T (Z - Z~) J| <= alpha |J|^2,  alpha <= |A - A_j|_F^2 / (2 (k + 1 - j)), every j <= k,
    with A the rows seen and A_j the best approximation of rank j: where A has a rank of at most k,
    delta is zero and Z~ exact. Only B^T B is used, so the signs that eigenvectors come with, and
    their order where eigenvalues are equal, do not matter.

    Memory: 8 (k p + k F) bytes, 5 MB at k = 64, p = 9,601.
    """

    def __init__(self, layout: Layout, ridge: float, rank: int) -> None:
        self._layout, self._ridge, self.rank = layout, ridge, rank
        self.alpha = 0.0
        self._sketch = np.empty((0, layout.parameters))
        self._pending = DistinctRows(layout.width)
        self._posterior: Woodbury | None = None
        self._stale = True

    def observe(self, row: Array, times: float = 1.0) -> None:
        if len(self._pending) == self.rank and row not in self._pending:
            self._shrink()
        self._pending.add(row, times)
        self._stale = True

    def withdraw(self, row: Array, times: float) -> None:
        """From the buffer; the sketch holds what it holds."""
        self._pending.take_away(row, times)
        self._stale = True

    def _weighted(self) -> Array:  # (r + k, p)
        """All rows that Z~ is made of."""
        dense = self._layout.dense(self._pending.rows)
        return np.concatenate([self._sketch, np.sqrt(self._pending.counts)[:, None] * dense])

    def _shrink(self) -> None:
        rows = self._weighted()
        values, vectors = np.linalg.eigh(rows @ rows.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        values = np.where(values > ROUNDING * values[0], values, 0.0)
        delta = float(values[self.rank]) if len(values) > self.rank else 0.0
        kept = np.count_nonzero(values[: self.rank] > delta)
        shares = np.sqrt(1 - delta / values[:kept])
        self._sketch = (vectors[:, :kept] * shares).T @ rows
        self.alpha += delta / 2
        self._pending, self._posterior = DistinctRows(self._layout.width), None

    def _base(self) -> Projected:
        floor = self._ridge + self.alpha
        if not len(self._sketch):
            return Projected(self._layout, floor)
        return _Sketched(self._layout, floor, self._sketch)

    def _current(self) -> Woodbury:
        if self._posterior is None:
            self._posterior, self._stale = Woodbury(self._base(), self.rank), True
        if self._stale:
            self._posterior.follow(self._pending.rows, self._pending.counts)
            self._stale = False
        return self._posterior

    def decay(self, share: float) -> None:
        self._sketch = np.sqrt(share) * self._sketch
        self.alpha *= share
        self._pending.scale(share)
        self._posterior = None

    def spectrum(self) -> tuple[float, float]:
        rows = self._weighted()
        return seen(rows @ rows.T, self._ridge + self.alpha)

    def arrays(self) -> dict[str, Stored]:
        return {
            "sketch": self._sketch,
            "alpha": np.array([self.alpha]),
            "rows": self._pending.rows,
            "counts": self._pending.counts,
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._sketch = arrays["sketch"].copy()
        self.alpha = float(arrays["alpha"][0])
        self._pending.replace(arrays["rows"], arrays["counts"])
        self._posterior = None
