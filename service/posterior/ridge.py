"""The Bayesian linear head: one `(A, b, rr, n)` for all arms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.linalg import inverse_root, spectrum, widths
from service.posterior.base import KEPT_DRAWS, NOISE_RATE, NOISE_SHAPE, Array, Bank, Health


def learned_noise(rr: float, explained: float, n: float) -> float:
    """sigma_hat: b_n / (a_n - 1) with a_n = a0 + n/2, b_n = b0 + (rr - b^T mu)/2.

    Before the first reward, where a_n - 1 is 0, the noise is that of the first unit reward.
    """
    if n == 0:
        return 1.0
    rate = NOISE_RATE + max(rr - explained, 0.0) / 2
    return float(np.sqrt(rate / (NOISE_SHAPE + n / 2 - 1)))


USES = 16
"""Decisions that a head is expected to make before it changes: 50 under load, where rewards share a
commit, and few between."""


@dataclass(slots=True)
class _Gaussian:
    """What follows from a ridge head's sums; replaced whole when they change.

    columns   [R^T | mu]: lengths of R phi are the widths, so one product gives widths and means
    drawn     weights w = mu + sigma R^T z, one column a draw of `bank`
    """

    mean: Array  # (m,)
    root: Array  # (m, m) lower
    noise: float
    columns: Array  # (m, m + 1)
    bank: Bank | None = None
    drawn: Array | None = None  # (m, M)

    def weights(self, bank: Bank) -> Array:  # (m, M)
        if self.drawn is None or self.bank is not bank:
            normals = bank.matrix(len(self.mean))
            self.drawn = self.mean[:, None] + self.noise * self.root.T.dot(normals.T)
            self.bank = bank
        return self.drawn


class RidgeHead:
    """One `(A, b, rr, n)` for all arms; arm features are inside phi."""

    def __init__(self, size: int, ridge: float, noise: float | None) -> None:
        self._ridge, self._fixed_noise = ridge, noise
        self.A = ridge * np.eye(size)
        self.b = np.zeros(size)
        self.rr, self.n = 0.0, 0.0
        self._derived: _Gaussian | None = None

    def observe(self, arm: str, phi: Array, reward: float, key: str = "") -> None:
        self._derived = None
        self.A += np.multiply.outer(phi, phi)
        self.b += reward * phi
        self.rr += reward * reward
        self.n += 1

    def revise(
        self, arm: str, phi: Array, was: float, reward: float, key: str = "", weight: float = 1.0
    ) -> None:
        self._derived = None
        self.b += weight * (reward - was) * phi
        self.rr += weight * (reward * reward - was * was)

    def decay(self, share: float) -> None:
        """A <- g A + (1 - g) lambda I, and b, rr, n by g: the prior is not forgotten."""
        self._derived = None
        self.A *= share
        self.A[np.diag_indices_from(self.A)] += (1 - share) * self._ridge
        self.b *= share
        self.rr, self.n = share * self.rr, share * self.n

    def distrust(self, factor: float) -> None:
        explained = float(self.b @ self.posterior.mean)
        self.rr += (factor - 1) * max(self.rr - explained, 0.0)
        self._derived = None

    @property
    def posterior(self) -> _Gaussian:
        if self._derived is None:
            root = inverse_root(self.A)
            half = root @ self.b
            noise = self._fixed_noise or learned_noise(self.rr, float(half @ half), self.n)
            mean = root.T @ half
            columns = np.column_stack((root.T, mean))
            self._derived = _Gaussian(mean, root, noise, columns)
        return self._derived

    def mean(self, phi: Array, arms: Sequence[str]) -> Array:
        return phi @ self.posterior.mean

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.posterior.noise * widths(self.posterior.root, phi)

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        return np.full(len(arms), self.n), np.full(len(arms), self.posterior.noise)

    def spread(self, phi: Array) -> tuple[Array, Array]:  # (n, m) -> (n,), (n,)
        """Mean, and variance in units of the noise."""
        product = phi.dot(self.posterior.columns)
        half = product[:, :-1]
        return product[:, -1], np.vecdot(half, half)

    def draw(self, phi: Array, arms: Sequence[str], bank: Bank) -> Array:
        """phi^T w with w = mu + sigma R^T z, z a row of the bank. Few rows: R phi first; many: the
        weights w, which then serve until the head changes. The table lies by arm."""
        posterior = self.posterior
        if len(phi) * USES >= bank.draws and len(self.b) * bank.draws <= KEPT_DRAWS:
            by_arm = phi.dot(posterior.weights(bank))
        else:
            half = phi.dot(posterior.root.T)
            by_arm = half.dot(bank.matrix(len(self.b)).T)
            by_arm *= posterior.noise
            by_arm += phi.dot(posterior.mean)[:, None]
        return np.asarray(by_arm.T)

    def health(self) -> Health:
        smallest, condition, _ = spectrum(self.A, self._ridge)
        return Health(smallest, condition, self.n, self.posterior.noise)

    def arrays(self) -> dict[str, Array]:
        return {"A": self.A, "b": self.b, "scalars": np.array([self.rr, self.n])}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.b = arrays["A"].copy(), arrays["b"].copy()
        self.rr, self.n = arrays["scalars"].tolist()
        self._derived = None
