"""What the covariances over gradients share: their protocol, distinct rows, and Woodbury.

Rows are the factors of `bandits.gradients`, (n, F); J is the (n, p) Jacobian that they stand for.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from service.bandits.gradients import Layout
from service.bandits.linalg import JITTERS, ROUNDING
from service.bandits.posterior.base import Array, Stored
from service.errors import NotPositiveDefinite

GRID = 36
"""Rows that agree to 2^-36 of their largest number are one. The same x encoded by itself and in a
batch differs by 2^-51 or so, and one number of 400 falls on two sides of a grid line in fewer than
a hundredth of the rows; a row that does is only kept twice."""


class Covariance(Protocol):
    """Z = lambda I + sum J J^T in one of its forms, over rows of factors.

    Later bits follow from `arrays()` and the rows to come, never from when something was asked for
    (one BLAS with one number of threads given).
    """

    def observe(self, row: Array, times: float = 1.0) -> None: ...  # (F,)
    def withdraw(self, row: Array, times: float) -> None:
        """It was seen so many times less, as far as Z can still tell."""

    def covariance(self, rows: Array) -> Array:  # (n, F) -> (n, n)
        """J Z^-1 J^T."""

    def variances(self, rows: Array) -> Array:  # (n, F) -> (n,)
        """Its diagonal."""

    def decay(self, share: float) -> None:
        """sum J J^T counts for `share` of itself from now on; lambda stays whole."""

    def spectrum(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of Z over the directions that rewards were seen in."""

    def arrays(self) -> dict[str, Stored]: ...
    def restore(self, arrays: dict[str, Stored]) -> None: ...


def names(rows: Array) -> list[bytes]:
    """Of each row; rows that differ by rounding alone have the same one, save at a grid line."""
    _, exponent = np.frexp(np.abs(rows).max(axis=1, initial=0.0))
    grid = np.rint(np.ldexp(rows, (GRID - exponent)[:, None])) + 0.0  # no negative zeros
    return [row.tobytes() for row in grid]


def distinct(rows: Array) -> tuple[list[int], list[int]]:
    """Indexes of the rows that differ (u,), and which of those each row is like (n,)."""
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
    """Distinct rows in the order of their first sight, and how often each was seen."""

    def __init__(self, width: int) -> None:
        self._place: dict[bytes, int] = {}
        self._rows, self._counts = np.empty((8, width)), np.zeros(8)

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, row: Array) -> bool:  # (F,)
        return names(row[None])[0] in self._place

    @property
    def rows(self) -> Array:  # (n, F)
        return self._rows[: len(self)]

    @property
    def counts(self) -> Array:  # (n,)
        return self._counts[: len(self)]

    def add(self, row: Array, times: float) -> int:
        """Its index."""
        size = len(self)
        index = self._place.setdefault(names(row[None])[0], size)
        if index == size:
            if size == len(self._rows):
                self._reserve(2 * size, self._rows, self._counts)
            self._rows[index], self._counts[index] = row, 0.0
        self._counts[index] += times
        return index

    def take_away(self, row: Array, times: float) -> None:
        """Nothing of a row that it does not have."""
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


class Base(Protocol):
    """Products J Z^-1 J'^T for a fixed Z. `lift` brings a row to Z, at a cost, once; `product` is
    cheap."""

    def lift(self, rows: Array) -> Array: ...  # (n, F) -> (n, q)
    def product(self, left: Array, right: Array) -> Array: ...  # (n, q), (k, q) -> (n, k)
    def squares(self, lifted: Array) -> Array: ...  # (n, q) -> (n,)
    def prior(self, rows: Array) -> Array:  # (n, F) -> (n,)
        """J J^T / lambda, from which the squares are differences: the size of their rounding."""


class Projected:
    """J Z^-1 J'^T = (J . J' - a . a') / floor, with a what `project` makes of J.

    By itself, where nothing was folded in: a is empty and Z = floor I.
    """

    def __init__(self, layout: Layout, floor: float) -> None:
        self.layout, self.floor = layout, floor

    def project(self, rows: Array) -> Array:  # (n, F) -> (n, r)
        return np.empty((len(rows), 0))

    def lift(self, rows: Array) -> Array:
        return np.hstack([rows, self.project(rows)])

    def product(self, left: Array, right: Array) -> Array:
        width = self.layout.width
        kernel = self.layout.gram(left[:, :width], right[:, :width])
        kernel -= left[:, width:] @ right[:, width:].T
        kernel /= self.floor
        return kernel

    def prior(self, rows: Array) -> Array:
        return np.asarray(self.layout.squares(rows) / self.floor)

    def squares(self, lifted: Array) -> Array:
        width = self.layout.width
        known = np.einsum("na,na->n", lifted[:, width:], lifted[:, width:])
        return np.asarray((self.layout.squares(lifted[:, :width]) - known) / self.floor)


class Woodbury:
    """(Z + sum_s w_s J_s J_s^T)^-1 for a few pending rows s on a base of Z (Woodbury 1950).

    J Z^-1 J'^T - H^T H', H = L^-1 W^1/2 J_s Z^-1 J^T, L L^T = I + W^1/2 (J_s Z^-1 J_s^T) W^1/2.
    Takes rows in one at a time, so that no bit depends on how many arrive between two reads.
    """

    def __init__(self, base: Base, capacity: int) -> None:
        self._base, self._size = base, 0
        self._lifted: Array = np.empty((capacity, 0))
        self._gram = np.empty((capacity, capacity))
        self._root, self._factor = np.empty(0), np.empty((0, 0))

    def follow(self, rows: Array, weights: Array) -> None:  # (k, F), (k,)
        """All pending rows, the old ones first and as they were; weights >= 0."""
        for row in rows[self._size :]:
            lifted = self._base.lift(row[None])
            if not self._size:
                self._lifted = np.empty((len(self._gram), lifted.shape[1]))
            self._lifted[self._size] = lifted[0]
            self._size += 1
            own = self._base.product(self._lifted[: self._size], lifted)[:, 0]
            self._gram[self._size - 1, : self._size] = own
            self._gram[: self._size, self._size - 1] = own
        if not self._size:
            return
        self._root = np.sqrt(weights)
        scaled = self._gram[: self._size, : self._size] * np.outer(self._root, self._root)
        scaled[np.diag_indices_from(scaled)] += 1.0
        self._factor = cholesky(scaled, weights * self._base.prior(rows))

    def covariance(self, rows: Array) -> Array:  # (n, F) -> (n, n)
        lifted = self._base.lift(rows)
        half = self._half(lifted)
        return self._base.product(lifted, lifted) - half.T @ half

    def variances(self, rows: Array) -> Array:  # (n, F) -> (n,)
        lifted = self._base.lift(rows)
        half = self._half(lifted)
        gained = np.einsum("kn,kn->n", half, half)
        return np.asarray(np.maximum(self._base.squares(lifted) - gained, 0.0))

    def _half(self, lifted: Array) -> Array:  # (n, q) -> (k, n)
        if not self._size:
            return np.empty((0, len(lifted)))
        known = self._base.product(self._lifted[: self._size], lifted)
        return solve(self._factor, self._root[:, None] * known)


class PendingRows(ABC):
    """Reads of a covariance through Woodbury, by pending rows on a base."""

    @abstractmethod
    def _current(self) -> Woodbury: ...

    def covariance(self, rows: Array) -> Array:
        return self._current().covariance(rows)

    def variances(self, rows: Array) -> Array:
        return self._current().variances(rows)


def cholesky(matrix: Array, scale: Array | None = None) -> Array:  # (n, n), (n,) -> (n, n) lower
    """L L^T = A for a matrix that is semidefinite by construction, with the smallest of JITTERS (of
    its mean diagonal) that will do.

    scale   minuends of the diagonal's entries: where rounding left nothing of a difference,
            JITTERS are shares of these

    Silent, unlike `linalg.inverse_root`: covariances of more arms than directions are singular,
    and a share of 1e-12 moves a draw by a millionth of its width. Raises NotPositiveDefinite.
    """
    mean = float(np.trace(matrix)) / len(matrix)
    for jitter in JITTERS if np.isfinite(mean) else ():
        shifted = matrix.copy(order="F")
        if jitter:
            shifted[np.diag_indices_from(shifted)] += jitter * mean + np.finfo(float).tiny
        factor, failed = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if not failed:
            return np.asarray(factor)
    return _factor_scaled(matrix, np.zeros(len(matrix)) if scale is None else scale)


def _factor_scaled(matrix: Array, scale: Array) -> Array:  # (n, n), (n,) -> (n, n) lower
    """Raises NotPositiveDefinite."""
    for jitter in JITTERS[1:]:
        shifted = matrix.copy(order="F")
        shifted[np.diag_indices_from(shifted)] += jitter * scale
        factor, failed = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if not failed and np.isfinite(factor[-1, -1]):  # LAPACK lets a NaN pass, to the last entry
            return np.asarray(factor)
    raise NotPositiveDefinite(len(matrix), JITTERS[-1])


def solve(factor: Array, right: Array) -> Array:  # (n, n) lower, (n, k) -> (n, k)
    """L^-1 B; nothing above the diagonal of L is read."""
    if not right.size:  # which LAPACK complains about
        return right
    solution, _ = lapack.dtrtrs(factor, right, lower=1)
    return np.asarray(solution)


def seen(gram: Array, floor: float) -> tuple[float, float]:
    """Ends of floor I + sum J J^T over what rewards were seen in, from the Gram matrix of those."""
    values = np.linalg.eigvalsh(gram) if len(gram) else np.zeros(1)
    largest = float(values[-1])
    doubt = ROUNDING * len(values) * largest
    if doubt > floor:  # which directions rewards were seen in cannot be told: then all count
        return floor + max(float(values[0]), 0.0), floor + largest
    values = values[values > doubt]
    if not len(values):
        return floor, floor
    return floor + float(values[0]), floor + largest
