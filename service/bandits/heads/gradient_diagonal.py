"""Z in p numbers: its diagonal."""

import numpy as np

from service.bandits.gradients import Layout
from service.bandits.heads.base import Array, Stored
from service.bandits.linalg import Spectrum, spectrum_of


class Diagonal:
    """Z_jj = lambda + sum nu J_j^2, nu the number of nonzero coordinates of J.

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

    def spectrum(self) -> Spectrum:
        return spectrum_of(self._ridge + self._sums, self._ridge)

    def arrays(self) -> dict[str, Stored]:
        return {"sums": self._sums}

    def restore(self, arrays: dict[str, Stored]) -> None:
        self._sums = arrays["sums"].copy()
