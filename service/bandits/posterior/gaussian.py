"""A normal distribution of the weights that all arms share, and what follows from it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.bandits.linalg import spectrum, widths
from service.bandits.posterior import win_probabilities
from service.bandits.posterior.base import KEPT_DRAWS, Array, Bank, HeadHealth
from service.bandits.posterior.rows import Index, Rows, Single, safe, slack
from service.bandits.posterior.win_probabilities import Weights

USES = 16
"""Decisions that a head is expected to make before it changes: 50 under load, where rewards share a
commit, and few between."""

BLOCK = 1_024
"""Rows at a time: their products stay in the cache."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Means and variances of rows in single precision.

    mean, variance   (n,), the variance in units of the noise
    error            bounds the error of the mean and of the root of the variance
    """

    mean: Single
    variance: Single
    error: float


@dataclass(slots=True)
class Gaussian:
    """Derived from a head's sums; replaced whole when they change.

    columns   [R^T | mu]: lengths of R phi are the widths, so one product gives widths and means
    drawn     weights w = mu + sigma R^T z, one column a draw of `bank`
    scaled    the same `scale` times as far from their mean plus a shift, as `Weights`
    spreads   so many rows may win that a search for the others does not pay
    single    columns in float32
    """

    mean: Array  # (m,)
    root: Array  # (m, m) lower
    noise: float
    columns: Array  # (m, m + 1)
    bank: Bank | None = None
    drawn: Array | None = None  # (m, M)
    scaled: tuple[float, Array | None, Weights] | None = None
    spreads: bool = False
    single: Single | None = None

    @classmethod
    def of(cls, mean: Array, root: Array, noise: float) -> "Gaussian":
        columns = np.empty((len(mean), len(mean) + 1))  # a column_stack, in a third of the time
        columns[:, :-1], columns[:, -1] = root.T, mean
        return cls(mean, root, noise, columns)

    def draws(self, bank: Bank, scale: float, shift: Array | None = None) -> Weights:
        """shift: (m,) added to every draw."""
        fresh = self.bank is not bank
        exact, scaled = self.weights(bank), self.scaled
        if scaled is None or fresh or scaled[0] != scale or scaled[1] is not shift:
            if scale != 1.0:
                center = exact.mean(axis=1, keepdims=True)
                exact = center + scale * (exact - center)
            if shift is not None:
                exact = exact + shift[:, None]
            away = scale * self.noise * bank.lengths(len(self.mean))
            scaled = self.scaled = scale, shift, Weights.of(exact, away)
        return scaled[2]

    def weights(self, bank: Bank) -> Array:  # (m, M)
        if self.drawn is None or self.bank is not bank:
            normals = bank.matrix(len(self.mean))
            self.drawn = self.mean[:, None] + self.noise * self.root.T.dot(normals.T)
            self.bank = bank
        return self.drawn

    def spread(self, phi: Array) -> tuple[Array, Array]:  # (n, m) -> (n,), (n,)
        """Mean, and variance in units of the noise."""
        product = phi.dot(self.columns)
        half = product[:, :-1]
        return product[:, -1], np.vecdot(half, half)

    def spread_roughly(self, rows: Rows, shift: Array | None = None) -> Spread | None:
        """The same in single precision; None where float32 does not hold it. shift: (m,) added to
        the mean's weights."""
        times, columns = rows.times, self.columns
        if times is not None or shift is not None:
            columns = columns.copy()
            if shift is not None:
                columns[:, -1] += shift
            if times is not None:
                columns *= times[:, None]
        length, size = rows.length, float(np.linalg.norm(columns))
        if not (safe(length, length) and safe(size, size)):
            return None
        own, single = self.single, rows.single
        if columns is not self.columns:
            own = columns.astype(np.float32)
        elif own is None:
            own = self.single = columns.astype(np.float32)
        mean, variance = np.empty((2, len(single)), np.float32)
        for start in range(0, len(single), BLOCK):
            product = single[start : start + BLOCK].dot(own)
            half = product[:, :-1]
            mean[start : start + BLOCK] = product[:, -1]
            np.vecdot(half, half, out=variance[start : start + BLOCK])
        return Spread(mean, variance, float(slack(len(own), length, np.array(size))))

    def win_shares(
        self, rows: Rows, like: Index, bank: Bank, scale: float, shift: Array | None = None
    ) -> Array | None:  # (b U, m) -> (b, U)
        """Of the draws, for each of b contexts; None where they are better counted in a table of
        all scores. like: (U,) arms that are like each row."""
        count = len(rows)
        if count * USES < bank.draws or len(self.mean) * bank.draws > KEPT_DRAWS:
            return None
        weights, reach = self.draws(bank, scale, shift), None
        if count == len(like) > win_probabilities.AT_ONCE and not self.spreads:
            found = self.spread_roughly(rows, shift)
            if found is not None:
                width = np.sqrt(found.variance)
                reach = win_probabilities.Reach(found.mean, width, found.error, weights.away)
        shares = win_probabilities.linear(rows, weights, like, reach)
        if reach is not None:
            self.spreads = reach.scored > 0.7 * count * bank.draws
        return shares


class GaussianHead(ABC):
    """A head with one normal distribution of the weights for all arms."""

    A: Array
    n: float
    _ridge: float

    @property
    @abstractmethod
    def posterior(self) -> Gaussian: ...

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.posterior.noise * widths(self.posterior.root, phi)

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        return np.full(len(arms), self.n), np.full(len(arms), self.posterior.noise)

    def health(self) -> HeadHealth:
        smallest, condition = spectrum(self.A, self._ridge)
        return HeadHealth(smallest, condition, self.n, self.posterior.noise)
