"""The Bayesian linear head: one `(A, b, rr, n)` for all arms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.linalg import inverse_root, spectrum, widths
from service.posterior import wins
from service.posterior.base import KEPT_DRAWS, NOISE_RATE, NOISE_SHAPE, Array, Bank, Health
from service.posterior.wins import ROUNDING, SAFE, Index, Single, Weights


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

MANY = 1_024
"""Rows from which on those that cannot win are looked for first."""


@dataclass(slots=True)
class _Gaussian:
    """What follows from a ridge head's sums; replaced whole when they change.

    columns   [R^T | mu]: lengths of R phi are the widths, so one product gives widths and means
    drawn     weights w = mu + sigma R^T z, one column a draw of `bank`
    scaled    the same `scale` times as far from their mean, as `Weights`
    spreads   so many rows may win that the rest is not worth looking for
    """

    mean: Array  # (m,)
    root: Array  # (m, m) lower
    noise: float
    columns: Array  # (m, m + 1)
    bank: Bank | None = None
    drawn: Array | None = None  # (m, M)
    scaled: tuple[float, Weights] | None = None
    spreads: bool = False
    single: Single | None = None  # of columns

    def draws(self, bank: Bank, scale: float) -> Weights:
        fresh = self.bank is not bank
        exact = self.weights(bank)
        if self.scaled is None or fresh or self.scaled[0] != scale:
            if scale != 1.0:
                center = exact.mean(axis=1, keepdims=True)
                exact = center + scale * (exact - center)
            away = scale * self.noise * bank.lengths(len(self.mean))
            self.scaled = scale, Weights.of(exact, away)
        return self.scaled[1]

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
        self.A += phi[:, None] * phi
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
            columns = np.empty((len(mean), len(mean) + 1))  # a column_stack, in a third of the time
            columns[:, :-1], columns[:, -1] = root.T, mean
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

    def spread_roughly(self, phi: Array) -> tuple[Single, Single, float] | None:
        """The same in single precision, and how far mean and square root of the variance may be
        from the true ones (as in `wins.linear`); None where float32 does not hold them."""
        posterior = self.posterior
        single = posterior.single
        if single is None:
            single = posterior.single = posterior.columns.astype(np.float32)
        size, length = np.sqrt(np.vecdot(phi, phi).max()), np.linalg.norm(posterior.columns)
        if not (SAFE[0] < size < SAFE[1] and SAFE[0] < length < SAFE[1]):
            return None
        product = phi.astype(np.float32).dot(single)
        half = product[:, :-1]
        error = 2 * ROUNDING * (len(single) + 8) * float(size * length)
        return product[:, -1], np.vecdot(half, half), error

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

    def directions(self, bank: Bank, draws: Sequence[int], away: float) -> Array:  # (m, 1 + draws)
        """The mean, and these draws of the weights `away` times as far from it."""
        posterior = self.posterior
        normals = bank.matrix(len(self.b))[list(draws)]
        drawn = away * posterior.noise * posterior.root.T.dot(normals.T)
        return np.column_stack([posterior.mean, posterior.mean[:, None] + drawn])

    def win_shares(
        self, phi: Array, like: Index, bank: Bank, scale: float
    ) -> Array | None:  # (n, m) -> (n,)
        """Of the draws; None where they are better counted in the table of `draw`."""
        if len(phi) * USES < bank.draws or len(self.b) * bank.draws > KEPT_DRAWS:
            return None
        posterior = self.posterior
        weights = posterior.draws(bank, scale)
        if len(phi) > MANY and not posterior.spreads:
            mean, variance = self.spread(phi)
            kept = wins.contenders(mean, np.sqrt(variance), phi, weights)
            if kept is not None:
                found = wins.linear(phi[kept], weights, like[kept])
                if found is None:
                    return None
                whole = np.zeros(len(phi))
                whole[kept] = found
                return whole
            posterior.spreads = True
        return wins.linear(phi, weights, like)

    def health(self) -> Health:
        smallest, condition, _ = spectrum(self.A, self._ridge)
        return Health(smallest, condition, self.n, self.posterior.noise)

    def arrays(self) -> dict[str, Array]:
        return {"A": self.A, "b": self.b, "scalars": np.array([self.rr, self.n])}

    def restore(self, arrays: dict[str, Array]) -> None:
        self.A, self.b = arrays["A"].copy(), arrays["b"].copy()
        self.rr, self.n = arrays["scalars"].tolist()
        self._derived = None
