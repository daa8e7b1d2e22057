"""Ridge regressions that are kept solved: P = A^-1 and theta = A^-1 B.

One settlement changes both by the Sherman-Morrison formula in O(m^2), with nothing left to
factorise before the next decision (recursive least squares: Haykin 2002, Adaptive Filter Theory,
chapter 9).
"""

from math import ceil

import numpy as np
from scipy.linalg import blas, lapack

from service.bandits.heads.base import Stored
from service.bandits.linalg import Array, Index

DUE, LEAST_SHARE = 0.95, 0.03
"""Forgetting is carried out once what is left falls below DUE, and leaves LEAST_SHARE at least."""

STEP = 0.5
"""Least share that one step of forgetting leaves: it solves for 2 m (1 - g) rows."""

SINGULAR = 1e-9
"""Value of 1 + w v up to which an observation is not taken out: it would leave less than the
prior."""


Sums = tuple[Array, Array]
"""A (n, m, m) and B (n, q, m) of regressions."""


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
