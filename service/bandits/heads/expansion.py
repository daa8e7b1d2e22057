"""Functions of a context beyond its columns: random ones, and those that a late member sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.bandits.heads.base import Stored
from service.bandits.linalg import Array, Index

EACH = 42
"""Functions of each kind: hinges of one column, ReLUs and squares of all."""

MOST_FUNCTIONS = 3 * EACH


@dataclass(frozen=True, slots=True)
class Expansion:
    """ReLUs of z = x W + shift, and squares of the last ones.

    weights  (d, n)
    shifts   (n,)
    scales   (n,) factors of the functions
    squares  how many of them, at the end, are squares
    """

    weights: Array
    shifts: Array
    scales: Array
    squares: int = 0

    @property
    def width(self) -> int:
        return len(self.shifts)

    def __call__(self, x: Array) -> Array:  # (B, d) -> (B, n)
        return self._bent(x @ self.weights + self.shifts)

    def _bent(self, z: Array) -> Array:  # (..., n) -> (..., n)
        found = np.maximum(z, 0.0)
        if self.squares:
            found[..., -self.squares :] = np.square(z[..., -self.squares :])
        return np.asarray(found * self.scales)

    def effects(self, x: Array, weights: Array) -> tuple[float, Array]:
        """Divide the product of these weights with the functions of a context x (d,) among its
        columns. Return the product at x = 0, and what each column adds to it.

        By integrated gradients from 0 to x (Sundararajan, Taly, Yan 2017), which add up: a function
        of a sum divides its change among the terms of the sum in proportion.
        """
        terms = x[:, None] * self.weights  # (d, n)
        a, at_zero = terms.sum(axis=0), self._bent(self.shifts)
        change = self._bent(a + self.shifts) - at_zero
        slope = np.divide(change, a, out=np.zeros_like(a), where=a != 0.0)
        return float(weights @ at_zero), np.asarray(terms @ (slope * weights))

    def moved(self, columns: Index) -> "Expansion":
        """Return the same functions of other columns. columns: where each was; -1 for a new one,
        which they do not see."""
        weights = np.where(columns[:, None] < 0, 0.0, self.weights[columns])
        return Expansion(weights, self.shifts, self.scales, self.squares)

    def arrays(self) -> dict[str, Stored]:
        return {
            "weights": self.weights,
            "shifts": self.shifts,
            "scales": self.scales,
            "squares": np.array([self.squares]),
        }

    @staticmethod
    def restored(arrays: dict[str, Stored]) -> "Expansion":
        weights, shifts, scales = (arrays[name].copy() for name in ("weights", "shifts", "scales"))
        [squares] = arrays["squares"].tolist()
        return Expansion(weights, shifts, scales, squares)


def measured(
    x: Array, draws: Sequence[np.random.Generator], levels: np.random.Generator, length: float
) -> Expansion:
    """Return hinges, ReLUs and squares whose bends lie where the rows are.

    A hinge is of one column that has more than two values. A bend is a quantile of the rows, by
    chance. Each kind weighs as much, and all of them as the columns do.

    x        (n, d) rows
    draws    of each column: other columns leave what is drawn for it as it is
    length   of a usual row
    """
    d = x.shape[1]
    normals = np.array([draw.standard_normal((2, EACH)) for draw in draws])  # (d, 2, EACH)
    order = np.array([draw.random(EACH) for draw in draws])
    signs = np.where(levels.random(EACH) < 0.5, -1.0, 1.0)
    at = levels.random((2, EACH))
    many = np.array([len(np.unique(column)) > 2 for column in x.T], bool)
    parts = [normals[:, 0]]
    if many.any():
        chosen = np.where(many[:, None], order, 2.0).argmin(axis=0)
        hinges = np.zeros((d, EACH))
        hinges[chosen, np.arange(EACH)] = signs
        parts.insert(0, hinges)
    shifts = [-_quantiles(x @ part, level) for part, level in zip(parts, at[::-1], strict=False)]
    weights = np.concatenate([*parts, normals[:, 1]], axis=1)
    plain = Expansion(
        weights, np.concatenate([*shifts, np.zeros(EACH)]), np.ones(weights.shape[1]), EACH
    )
    found = plain(x).reshape(len(x), -1, EACH)
    sizes = np.sqrt(np.square(found).sum(axis=2).mean(axis=0))  # (kinds,)
    shares = np.divide(length, sizes, out=np.zeros_like(sizes), where=sizes > 0.0)
    scales = np.repeat(shares / np.sqrt(len(sizes)), EACH)
    return Expansion(plain.weights, plain.shifts, scales, EACH)


def _quantiles(values: Array, levels: Array) -> Array:  # (n, k), (k,) -> (k,)
    """Return of each column the quantile at its level."""
    ranked = np.sort(values, axis=0)
    places = (levels * len(values)).astype(np.intp)
    return np.asarray(ranked[places, np.arange(values.shape[1])])
