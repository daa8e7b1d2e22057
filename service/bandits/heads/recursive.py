"""Ridge regressions that are kept solved: P = A^-1 and theta = A^-1 B.

One settlement changes both by the Sherman-Morrison formula in O(m^2), with nothing left to
factorise before the next decision (recursive least squares: Haykin 2002, Adaptive Filter Theory,
chapter 9).
"""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas, lapack

from service.bandits.heads.base import Stored
from service.bandits.linalg import Array, Index
from service.errors import NotPositiveDefinite

DUE, LEAST_SHARE = 0.95, 0.03
"""Forgetting is carried out once what is left falls below DUE, and leaves LEAST_SHARE at least."""

STEP = 0.5
"""Least share that one step of forgetting leaves: it solves for 2 m (1 - g) rows."""

SINGULAR = 1e-9
"""Value of 1 + w v up to which an observation is not taken out: it would leave less than the
prior."""


CERTAIN = 1.0 - 1e-6
"""Least root of 1 + v that a block is learned with: v is no less than 0 but for rounding."""

Sums = tuple[Array, Array]
"""A (n, m, m) and B (n, q, m) of regressions."""


class BlockLook(NamedTuple):
    """Rows that one arm's regression is to learn as a block.

    errors   (k, q) of the forecast of each row once those before it are learned
    grown    (k,) 1 + v of each, likewise
    scaled   (k, q) these errors over the roots of these
    gains    (k, m) each row's P x likewise, once those before it are learned
    """

    errors: Array
    grown: Array
    scaled: Array
    gains: Array


class FadingLook(NamedTuple):
    """The same where the regression forgets: it has learned them, and can take them back.

    rows     as `look_block` has taken them
    before   P, theta, last and turn of the arm before them
    """

    errors: Array
    grown: Array
    rows: tuple[Array, Array, Index]
    before: tuple[Array, Array, int, int]


class RecursiveRidge:
    """Regressions of q targets on the same m columns, one an arm; the last row stays the prior.

    P       (n, m, m) A^-1, which starts at the identity: rows are scaled, not the prior
    theta   (n, q, m)
    gamma   share of itself that an observation keeps at each settlement of any arm
    last    (n,) settlements at the last forgetting
    turn    (n,) the coordinate to which the next one returns its prior
    """

    def __init__(self, columns: int, targets: int, gamma: float) -> None:
        self.columns, self.targets, self.gamma = columns, targets, gamma
        self._reserve(2)

    def _reserve(self, rows: int) -> None:
        m = self.columns
        self.P = np.broadcast_to(np.eye(m), (rows, m, m)).copy()
        self.theta = np.zeros((rows, self.targets, m))
        self.last, self.turn = np.zeros((2, rows), np.int64)

    def admit(self, arm: int, now: int) -> None:
        """Give the next row, which is still the prior's, to an arm."""
        if arm + 1 == len(self.P):
            old = self.P, self.theta, self.last, self.turn
            self._reserve(2 * len(self.P))
            for wide, narrow in zip((self.P, self.theta, self.last, self.turn), old, strict=True):
                wide[: arm + 1] = narrow
        self.last[arm] = now

    def look(self, arm: int, row: Array, now: int) -> tuple[Array, Array, float]:
        """Return P x, the predictions (q,) and the variance v = x' P x of one arm, after it has
        forgotten."""
        if self.gamma < 1.0:
            self._forget(arm, now)
        gain: Array = self.P[arm] @ row
        return gain, self.theta[arm] @ row, float(gain @ row)

    def learn(self, arm: int, gain: Array, weight: float, errors: Array) -> None:
        """Learn a row: theta += w e x' P, P -= w P x x' P. weight: of the errors, w / (1 + w v)."""
        self.theta[arm] += np.multiply.outer(weight * errors, gain)
        P = self.P[arm].T  # in place, since BLAS wants columns; P is symmetric
        blas.dger(-weight, gain, gain, a=P, overwrite_a=1)

    def look_block(
        self, arm: int, rows: Array, targets: Array, now: Index
    ) -> BlockLook | FadingLook:
        """Look at rows (k, m) with targets (k, q) that an arm learns one after the other. now: (k,)
        settlements before each. Raises NotPositiveDefinite."""
        if self.gamma == 1.0:
            return _looked(self.P[arm], self.theta[arm], rows, targets)
        before = self.P[arm].copy(), self.theta[arm].copy(), self.last[arm], self.turn[arm]
        try:
            parts = [*self._learn_parts(arm, rows, targets, now)]
        except NotPositiveDefinite:
            self.P[arm], self.theta[arm], self.last[arm], self.turn[arm] = before
            raise
        errors, grown = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        return FadingLook(errors, grown, (rows, targets, now), before)

    def _learn_parts(
        self, arm: int, rows: Array, targets: Array, now: Index
    ) -> Iterator[BlockLook]:
        """Look at rows and learn them, up to the next forgetting at a time."""
        start = 0
        while start < len(rows):
            self._forget(arm, int(now[start]))
            end = start + 1
            while end < len(rows) and self.gamma ** float(now[end] - self.last[arm]) > DUE:
                end += 1
            part = _looked(self.P[arm], self.theta[arm], rows[start:end], targets[start:end])
            self._take(arm, part.scaled, part.gains)
            yield part
            start = end

    def learn_block(self, arm: int, looked: BlockLook | FadingLook, count: int) -> None:
        """Learn the first rows of a block that was looked at."""
        if isinstance(looked, BlockLook):
            self._take(arm, looked.scaled[:count], looked.gains[:count])
        elif count < len(looked.grown):
            self.P[arm], self.theta[arm], self.last[arm], self.turn[arm] = looked.before
            if count:
                rows, targets, now = looked.rows
                self.look_block(arm, rows[:count], targets[:count], now[:count])

    def _take(self, arm: int, scaled: Array, gains: Array) -> None:
        self.theta[arm] += scaled.T @ gains
        self.P[arm] -= gains.T @ gains

    def predict(self, arms: Index, x: Array, now: int) -> tuple[Array, Array]:
        """Return predictions (B, K, q) and variances (B, K) of arms in contexts; x: (B, m). What
        they are to forget counts as forgotten.

        Each is one product; without a copy of P where most arms are asked for.
        """
        count, m = len(x), self.columns
        rows = slice(None) if 2 * len(arms) > len(self.P) else arms
        told = (x @ self.theta[rows].reshape(-1, m).T).reshape(count, -1, self.targets)
        squares = (x[:, :, None] * x[:, None, :]).reshape(count, m * m)
        v = squares @ self.P[rows].reshape(-1, m * m).T
        v = self._faded(v, rows, np.vecdot(x, x)[:, None], now)
        return (told, v) if rows is arms else (told[:, arms], v[:, arms])

    def variances_of(self, x: Array, now: int) -> Array:  # (..., m) -> (...)
        """Return x' P x of rows under the first arm's P."""
        found = np.vecdot(x @ self.P[0], x)
        return self._faded(found, slice(0, 1), np.vecdot(x, x), now)

    def quadratics(self, x: Array, now: int) -> Array:  # (n, k, m) -> (n, k, k)
        """Return X P X' of rows under the first arm's P: the form of the variance of sums of
        them, before it is cut at what the prior says."""
        found: Array = (x.reshape(-1, x.shape[2]) @ self.P[0]).reshape(x.shape) @ x.swapaxes(1, 2)
        return found if self.gamma == 1.0 else found / self._left(slice(0, 1), now)

    def _faded(self, v: Array, rows: Index | slice, prior: Array, now: int) -> Array:
        if self.gamma == 1.0:
            return v
        return np.minimum(v / self._left(rows, now), prior)

    def _left(self, rows: Index | slice, now: int) -> Array:  # (n,)
        """Return the share of what arms learned that they have not forgotten."""
        return np.maximum(self.gamma ** (now - self.last[rows]).astype(float), 1e-9)

    def _forget(self, arm: int, now: int) -> None:
        """Forget, A <- g A + (1 - g) I and B <- g B, in steps; the prior returns to a few
        coordinates at a time, so that a step costs O(m^2)."""
        left, m = self.gamma ** float(now - self.last[arm]), self.columns
        if left > DUE:
            return
        left, self.last[arm] = max(left, LEAST_SHARE), now
        while left < 1.0 - 1e-12:
            g = max(left, STEP)
            left /= g
            n = min(m, ceil(2 * m * (1 - g)))
            at = (self.turn[arm] + np.arange(n)) % m
            self.turn[arm] = (self.turn[arm] + n) % m
            P = self.P[arm] + self.P[arm].T  # asymmetry would grow by 1 / g at every step
            P *= 0.5 / g
            rows = P[at]
            S = rows[:, at]
            S.flat[:: n + 1] += n / ((1 - g) * m)
            L, _ = lapack.dpotrf(S, lower=1)  # Woodbury, n x n; S is no less than its prior
            H = blas.dtrsm(1.0, L, rows.T, side=1, lower=1, trans_a=1)  # (m, n): P[:, at] L^-T
            self.theta[arm] -= blas.dtrsm(1.0, L, self.theta[arm][:, at].T, lower=1).T @ H.T
            P -= H @ H.T
            self.P[arm] = P

    def follow(self, kept: "RecursiveRidge", columns: Index, targets: Index) -> None:
        """Take what was learned of other columns and targets, of which none is gone; -1: a new one,
        which was 0 until now."""
        self._reserve(len(kept.P))
        self.P = _square(kept.P, columns)
        self.theta = _block(kept.theta, targets, columns)
        self.last, self.turn = kept.last.copy(), kept.turn.copy()

    def shrink(
        self,
        sums: Sums,
        columns: Index,
        targets: Index,
        kept: "RecursiveRidge",
        less: Array | None = None,
    ) -> Array:  # (n, m, m)
        """Adopt the sums of `kept` after columns were removed; return the new A.

        sums: of the other columns; less: (n, q + m, m), what to take off B and A of the new ones
        """
        self._reserve(len(kept.P))
        A, B = _square(sums[0], columns), _block(sums[1], targets, columns)
        if less is not None:
            A, B = A - less[:, self.targets :], B - less[:, : self.targets]
        P = np.linalg.inv(A)
        self.P = np.asarray(0.5 * (P + P.swapaxes(1, 2)), np.float64)
        self.theta = B @ self.P
        self.last, self.turn = kept.last.copy(), kept.turn % self.columns
        return A

    @property
    def sums(self) -> Sums:
        """A = P^-1 and B = theta A."""
        A = np.asarray(np.linalg.inv(self.P), np.float64)
        return A, self.theta @ A

    def arrays(self, rows: int) -> dict[str, Stored]:
        own = {"P": self.P, "theta": self.theta, "last": self.last, "turn": self.turn}
        return {name: array[:rows] for name, array in own.items()}

    def restore(self, arrays: dict[str, Stored], rows: int) -> None:
        """Reserve as many rows as `admit` has: a product rounds by its size."""
        self._reserve(max(2, 2 ** rows.bit_length()))
        own = {"P": self.P, "theta": self.theta, "last": self.last, "turn": self.turn}
        for name, array in own.items():
            array[:rows] = arrays[name]


def _looked(P: Array, theta: Array, rows: Array, targets: Array) -> BlockLook:
    """Look at a block of rows S with targets T. With G = S P and I + S G' = C C', 1 + v of row j,
    once those before it are learned, is C_jj^2, and its error is C_jj times the j-th row of
    Z = C^-1 (T - S theta'). Learning all adds Z' H to theta and takes H' H off P, H = C^-1 G."""
    gains, errors = rows @ P, targets - rows @ theta.T
    V = gains @ rows.T
    if len(rows) == 1 and V[0, 0] >= 0.0:
        grown = 1.0 + V[0]
        root = np.sqrt(grown)
        return BlockLook(errors, grown, errors / root, gains / root)
    V.flat[:: len(V) + 1] += 1.0
    C, failed = lapack.dpotrf(V, lower=1, clean=1)
    if failed or np.diagonal(C).min() < CERTAIN:
        raise NotPositiveDefinite(len(V), 0.0)
    whole, _ = lapack.dtrtrs(C, np.concatenate((errors, gains), axis=1), lower=1)
    q, root = errors.shape[1], np.diagonal(C)
    scaled = whole[:, :q]
    return BlockLook(scaled * root[:, None], np.square(root), scaled, whole[:, q:])


def _square(matrices: Array, columns: Index) -> Array:  # (n, m, m) -> (n, k, k)
    """Rows and columns from where they were; new ones of the identity."""
    found = np.broadcast_to(np.eye(len(columns)), (len(matrices), len(columns), len(columns)))
    here, there = np.flatnonzero(columns >= 0), columns[columns >= 0]
    moved = found.copy()
    moved[:, here[:, None], here] = matrices[:, there[:, None], there]
    return moved


def _block(matrices: Array, rows: Index, columns: Index) -> Array:  # (n, q, m) -> (n, r, k)
    """Rows and columns from where they were; new ones are 0."""
    moved = np.zeros((len(matrices), len(rows), len(columns)))
    mine, theirs = np.flatnonzero(rows >= 0), rows[rows >= 0]
    here, there = np.flatnonzero(columns >= 0), columns[columns >= 0]
    moved[:, mine[:, None], here] = matrices[:, theirs[:, None], there]
    return moved
