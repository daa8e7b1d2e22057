"""The protocol of covariances over gradients, and what they share: distinct rows, factors.

Rows are the factors of `bandits.gradients`, (n, F); J is the (n, p) Jacobian that they stand for.
"""

from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from service.bandits.heads.base import Array, Stored
from service.bandits.linalg import JITTERS, Spectrum
from service.errors import NotPositiveDefinite

GRID = 36
"""Rows that agree to 2^-36 of their largest number are one. The same x encoded by itself and in a
batch differs by 2^-51 or so, and one number of 400 falls on two sides of a grid line in fewer than
a hundredth of the rows; a row that does is only kept twice."""


class Covariance(Protocol):
    """Z = lambda I + sum J J^T in one of its forms, over rows of factors.

    Later bits follow from `arrays()` and later rows, never from the time of a read (with one BLAS
    and one number of threads).
    """

    def observe(self, row: Array, times: float = 1.0) -> None: ...  # (F,)
    def withdraw(self, row: Array, times: float) -> None:
        """Take so many observations of a row out of Z, as far as Z can still tell."""

    def covariance(self, rows: Array) -> Array:  # (n, F) -> (n, n)
        """J Z^-1 J^T."""

    def variances(self, rows: Array) -> Array:  # (n, F) -> (n,)
        """Its diagonal."""

    def decay(self, share: float) -> None:
        """Multiply sum J J^T by `share`; lambda stays whole."""

    def spectrum(self) -> Spectrum:
        """Return the spectrum of Z, over all p directions."""

    def arrays(self) -> dict[str, Stored]: ...
    def restore(self, arrays: dict[str, Stored]) -> None: ...


def names(rows: Array) -> list[bytes]:
    """Name each row; rows that differ by rounding alone share a name, except at a grid line."""
    _, exponent = np.frexp(np.abs(rows).max(axis=1, initial=0.0))
    grid = np.rint(np.ldexp(rows, (GRID - exponent)[:, None])) + 0.0  # no negative zeros
    return [row.tobytes() for row in grid]


def distinct(rows: Array) -> tuple[list[int], list[int]]:
    """Return the indexes of the distinct rows (u,), and of which of them each row is one (n,)."""
    place: dict[bytes, int] = {}
    first: list[int] = []
    of: list[int] = []
    for index, name in enumerate(names(rows)):
        if name not in place:
            place[name] = len(first)
            first.append(index)
        of.append(place[name])
    return first, of


class DistinctRows:
    """The first `limit` distinct rows, in order, and the number of observations of each."""

    def __init__(self, width: int, limit: int) -> None:
        self._limit = limit
        self._place: dict[bytes, int] = {}
        self._rows, self._counts = np.empty((8, width)), np.zeros(8)

    def __len__(self) -> int:
        return len(self._place)

    @property
    def rows(self) -> Array:  # (n, F)
        return self._rows[: len(self)]

    @property
    def counts(self) -> Array:  # (n,)
        return self._counts[: len(self)]

    def add(self, row: Array, times: float) -> int | None:
        """Count a row. Return its index; None for a new row where there is no place left."""
        size, name = len(self), names(row[None])[0]
        index = self._place.get(name)
        if index is None:
            if size == self._limit:
                return None
            if size == len(self._rows):
                self._reserve(2 * size, self._rows, self._counts)
            index = self._place[name] = size
            self._rows[index], self._counts[index] = row, 0.0
        self._counts[index] += times
        return index

    def take_away(self, row: Array, times: float) -> None:
        """Lower a row's count, to 0 at most; ignore unknown rows."""
        index = self._place.get(names(row[None])[0])
        if index is not None:
            self._counts[index] = max(self._counts[index] - times, 0.0)

    def scale(self, share: float) -> None:
        self._counts *= share

    def replace(self, rows: Array, counts: Array) -> None:
        self._reserve(max(8, 2 * len(rows)), rows, counts)
        self._place = {name: index for index, name in enumerate(names(rows))}

    def _reserve(self, capacity: int, rows: Array, counts: Array) -> None:
        self._rows, self._counts = np.empty((capacity, rows.shape[1])), np.zeros(capacity)
        self._rows[: len(rows)], self._counts[: len(counts)] = rows, counts


def cholesky(matrix: Array, scale: Array | None = None) -> Array:  # (n, n), (n,) -> (n, n) lower
    """Factor a matrix that is semidefinite by construction, A = L L^T, with the smallest of JITTERS
    (shares of its mean diagonal) that suffices.

    scale   minuends of the diagonal's entries: where rounding left nothing of a difference,
            JITTERS are shares of these

    Silent, unlike `linalg.inverse_root`: covariances of more arms than directions are singular,
    and a share of 1e-12 moves a draw by a millionth of its width. Raises NotPositiveDefinite.
    """
    mean = float(np.trace(matrix)) / len(matrix)
    shifts: list[float | Array] = [0.0]
    shifts += [jitter * mean + np.finfo(float).tiny for jitter in JITTERS[1:]]
    if scale is not None:
        shifts += [jitter * scale for jitter in JITTERS[1:]]
    for shift in shifts:
        shifted = matrix.copy(order="F")
        shifted[np.diag_indices_from(shifted)] += shift
        factor, failed = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if not failed and np.isfinite(factor[-1, -1]):  # LAPACK lets a NaN pass, to the last entry
            return np.asarray(factor)
    raise NotPositiveDefinite(len(matrix), JITTERS[-1])


def solve(factor: Array, right: Array) -> Array:  # (n, n) lower, (n, k) -> (n, k)
    """Compute L^-1 B. Nothing above the diagonal of L is read."""
    if not right.size:  # LAPACK refuses empty arrays
        return right
    solution, _ = lapack.dtrtrs(factor, right, lower=1)
    return np.asarray(solution)
