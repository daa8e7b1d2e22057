"""A normal distribution of the weights that all arms share, and what follows from it."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.bandits.heads.base import Array, Bank, HeadHealth
from service.bandits.heads.head import Head
from service.bandits.heads.win_probabilities import Weights, linear
from service.bandits.linalg import Index, spectrum, widths

USES = 16
"""Decisions that a head is expected to make before it changes: 50 under load, where rewards share a
commit, and few between. Fewer rows than draws / USES are drawn by R phi: the weights cost more."""


@dataclass(slots=True)
class Gaussian:
    """Derived from a head's sums; replaced whole when they change.

    level     what is added to all products with the weights
    columns   [R^T | mu]: lengths of R phi are the widths, so one product gives widths and means
    """

    mean: Array  # (m,)
    root: Array  # (m, m) lower
    noise: float
    level: float
    columns: Array  # (m, m + 1)
    _drawn: tuple[Bank, float, Weights] | None = None

    @classmethod
    def of(cls, mean: Array, root: Array, noise: float, level: float) -> "Gaussian":
        columns = np.empty((len(mean), len(mean) + 1))  # a column_stack, in a third of the time
        columns[:, :-1], columns[:, -1] = root.T, mean
        return cls(mean, root, noise, level, columns)

    def weights(self, bank: Bank, scale: float = 1.0) -> Weights:
        """Draw w = mu + sigma R^T z. scale: draws lie so many times as far from the mean. The
        latest draws are kept for the next decisions."""
        drawn = self._drawn
        if drawn is None or drawn[0] is not bank or drawn[1] != scale:
            exact = bank.matrix(len(self.mean)).dot((scale * self.noise) * self.root)
            exact += self.mean
            drawn = self._drawn = bank, scale, Weights.of(exact)
        return drawn[2]

    def spread(self, phi: Array) -> tuple[Array, Array]:  # (n, m) -> (n,), (n,)
        """Return the mean, and the variance in units of the noise."""
        product = phi.dot(self.columns)
        half = product[:, :-1]
        return product[:, -1], np.vecdot(half, half)

    def win_shares(
        self, phi: Array, like: Index, bank: Bank, scale: float
    ) -> Array:  # (b U, m) -> (b, U)
        """Return the shares of the draws that each row wins, in each of b contexts. like: (U,) arms
        that are like each row."""
        if len(phi) * USES >= bank.draws:
            return linear(phi, self.weights(bank, scale), like)
        rows = np.empty((len(phi), len(self.mean) + 1))
        np.multiply(phi.dot(self.root.T), scale * self.noise, out=rows[:, :-1])
        rows[:, -1] = phi.dot(self.mean)
        return linear(rows, bank.offset_matrix(len(self.mean)), like)

    def directions(self, bank: Bank, draws: Sequence[int], away: float) -> Array:  # (m, 1 + draws)
        """Return the mean, and these draws of the weights `away` times as far from it."""
        normals = bank.matrix(len(self.mean))[list(draws)]
        drawn = away * self.noise * self.root.T.dot(normals.T)
        return np.column_stack([self.mean, self.mean[:, None] + drawn])


class GaussianHead(Head):
    """A head with one normal distribution of the weights for all arms."""

    A: Array
    _ridge: float

    @property
    @abstractmethod
    def n(self) -> float:
        """Settlements that it holds."""

    @property
    def held(self) -> float:
        return self.n

    @property
    @abstractmethod
    def posterior(self) -> Gaussian: ...

    def win_shares(
        self, phi: Array, arms: Sequence[str], like: Index, bank: Bank, scale: float
    ) -> Array:
        return self.posterior.win_shares(phi, like, bank, scale)

    def width(self, phi: Array, arms: Sequence[str]) -> Array:
        return self.posterior.noise * widths(self.posterior.root, phi)

    def evidence(self, arms: Sequence[str]) -> tuple[Array, Array]:
        return np.full(len(arms), self.n), np.full(len(arms), self.posterior.noise)

    def health(self) -> HeadHealth:
        found = spectrum(self.A, self._ridge)
        return HeadHealth.of_worst([found], self._ridge, self.n, self.posterior.noise)
