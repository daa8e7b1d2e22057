"""The Bayesian linear head: one `(A, b, rr, n)` for all arms."""

from collections.abc import Sequence
from math import isfinite
from typing import Self

import numpy as np
from scipy.linalg import lapack

from service.bandits.heads.base import (
    NOISE_RATE,
    NOISE_SHAPE,
    Array,
    Bank,
    Observation,
    Observations,
    Stored,
    added,
    added_squares,
    removable,
)
from service.bandits.heads.gaussian import USES, Gaussian, GaussianHead
from service.bandits.heads.reward_sums import RewardSums
from service.bandits.linalg import Index, inverse_root
from service.features.columns import taken


def learned_noise(unexplained: float, n: float, spread: float) -> float:
    """Return sigma_hat, the root of b_n / (a_n - 1), with a_n = a0 + n/2 and
    b_n = b0 spread^2 + unexplained / 2.

    Before the first reward, where a_n - 1 is 0, the noise is that of the first unit reward; so it
    is where all rewards together count for less than a double can add to a0.
    """
    degrees = NOISE_SHAPE + n / 2 - 1
    if degrees <= 0:
        return 1.0
    rate = NOISE_RATE * spread * spread + max(unexplained, 0.0) / 2
    return float(np.sqrt(rate / degrees))


class RidgeHead(GaussianHead):
    """One `(A, b, s, rr, r, n)` for all arms; arm features are inside phi.

    The prior's mean is the level r / n of all rewards, where LinUCB and linear Thompson sampling
    have 0, so that no level of rewards makes what was shown look better than what was not:
    mu = A^-1 (b - level s), with s = sum phi, and a mean is level + phi^T mu.
    """

    def __init__(self, size: int, ridge: float, noise: float | None) -> None:
        self._ridge, self._fixed_noise = ridge, noise
        self.A = ridge * np.eye(size)
        self.b, self.s = np.zeros(size), np.zeros(size)
        self.rewards = RewardSums()
        self._derived: Gaussian | None = None
        self._solved: Array | None = None

    @property
    def n(self) -> float:
        return self.rewards.n

    @property
    def level(self) -> float:
        return self.rewards.level

    def observe(self, row: Observation) -> None:
        self._derived = self._solved = None
        weighed = row.weight * row.phi
        self.A += weighed[:, None] * row.phi
        self.b += row.reward * weighed
        self.s += weighed
        self.rewards.add(row.reward, row.weight)

    def observe_many(self, rows: Observations) -> None:
        self._derived = self._solved = None
        phi = rows.phi
        weighed = rows.weights[:, None] * phi
        self.A = added_squares(self.A, weighed, phi)
        self.b = added(self.b, rows.rewards[:, None] * weighed)
        self.s = added(self.s, weighed)
        self.rewards.add_many(rows.rewards, rows.weights)

    def revise(self, row: Observation, was: float, left: float = 1.0) -> None:
        self._derived = self._solved = None
        left *= row.weight
        self.b += left * (row.reward - was) * row.phi
        self.rewards.revise(row.reward, was, left)

    def withdraw(self, row: Observation, left: float = 1.0) -> None:
        phi, was = row.phi, row.reward
        left *= row.weight
        if not removable(phi, self._ridge, left):
            return
        self._derived = self._solved = None
        self.A -= left * (phi[:, None] * phi)
        self.b -= left * was * phi
        self.s -= left * phi
        self.rewards.withdraw(was, left)

    def decay(self, share: float) -> None:
        """Forget, A <- g A + (1 - g) lambda I and all other sums by g: the prior stays whole."""
        self._derived = self._solved = None
        self.A *= share
        self.A[np.diag_indices_from(self.A)] += (1 - share) * self._ridge
        self.b *= share
        self.s *= share
        self.rewards.decay(share)

    def distrust(self, factor: float) -> None:
        half = self.posterior.root @ self._centred
        unexplained = self.rewards.squares - float(half @ half)
        self.rewards.rr += (factor - 1) * max(unexplained, 0.0)
        self._derived = self._solved = None

    @property
    def stale(self) -> int:
        return int(self._derived is None and self._solved is None)

    @property
    def _centred(self) -> Array:  # (m,)
        return self.b - self.level * self.s

    @property
    def posterior(self) -> Gaussian:
        if self._derived is None:
            root = inverse_root(self.A)
            half = root @ self._centred
            noise = self._noise(float(half @ half))
            self._derived = Gaussian.of(root.T @ half, root, noise, self.level)
        return self._derived

    @property
    def coefficients(self) -> Array:  # (m,)
        """The posterior's mean alone, in half the time."""
        if self._solved is None:
            self._solved = solution(self.A, self._centred)
        return self._solved

    @property
    def noise(self) -> float:
        """`posterior.noise` but for its last bits, by the mean alone."""
        return self._noise(float(self._centred @ self.coefficients))

    def _noise(self, explained: float) -> float:
        rewards = self.rewards
        return self._fixed_noise or learned_noise(
            rewards.squares - explained, rewards.n, rewards.spread
        )

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return np.asarray(self.level + phi @ self.posterior.mean)

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """Draw phi^T w with w = mu + sigma R^T z, z a row of the bank. Few rows: R phi first; many:
        the weights w, which then serve until the head changes."""
        posterior = self.posterior
        if len(phi) * USES >= bank.draws:
            return np.asarray(self.level + posterior.weights(bank).exact @ phi.T)
        half = posterior.noise * phi.dot(posterior.root.T)
        means = self.level + phi.dot(posterior.mean)
        return np.asarray(bank.matrix(len(self.b)) @ half.T + means)

    def follow(self, kept: Self, columns: Index) -> None:
        self.restore(followed(kept.arrays(), columns, self._ridge))

    def arrays(self) -> dict[str, Array]:
        return {"A": self.A, "b": self.b, "s": self.s, "rewards": self.rewards.array()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.b, self.s = (arrays[name].copy() for name in ("A", "b", "s"))
        self.rewards = RewardSums(*arrays["rewards"].tolist())
        self._derived = self._solved = None


def followed(arrays: dict[str, Stored], columns: Index, ridge: float) -> dict[str, Stored]:
    """Return sums A, b and s over rows whose columns were elsewhere, as if those that are gone had
    never been; a new one was 0, so that A has the prior's. columns: where each was, -1 for a new
    one."""
    A = taken(np.swapaxes(taken(arrays["A"], columns), -1, -2), columns)
    new = np.flatnonzero(columns < 0)
    A[..., new, new] = ridge
    b, s = (taken(arrays[name], columns) for name in ("b", "s"))
    return arrays | {"A": np.swapaxes(A, -1, -2), "b": b, "s": s}


def solution(precision: Array, right: Array) -> Array:  # (m, m), (m,) or (m, k) -> the same
    """A^-1 b by Cholesky; where rounding left A indefinite, with the jitter of `inverse_root`.

    Raises NotPositiveDefinite where that does not help, or A is not finite.
    """
    _, solved, failed = lapack.dposv(precision.T, right, lower=0)
    # LAPACK lets a NaN pass; the sum finds it in half the time, but may overflow by itself.
    if failed or not isfinite(precision.sum()):
        root = inverse_root(precision)
        return np.asarray(root.T @ (root @ right))
    return np.asarray(solved)
