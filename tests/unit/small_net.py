"""A net of 49 parameters, the factors of its gradients, and J Z^-1 J^T by the formula."""

import numpy as np

from service.bandits.gradients import Layout, factors
from service.bandits.networks import cold_network

SMALL = Layout((3, 5, 4, 1))  # p = 49
RIDGE = 0.5


def rows_of(layout: Layout, count: int, seed: int) -> np.ndarray:
    """Factors of `count` inputs, |J|^2 about 1."""
    x = np.random.default_rng(seed).standard_normal((count, layout.sizes[0]))
    layers = cold_network(layout.sizes, "net").layers
    size = layout.squares(factors(layers, x, 1.0)).mean()
    return factors(layers, x, 1 / np.sqrt(size))


def stream(count: int, among: int, seed: int) -> np.ndarray:
    """Rows that repeat."""
    rng = np.random.default_rng(seed)
    return rows_of(SMALL, among, seed)[rng.integers(0, among, count)]


def by_formula(layout: Layout, seen: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """J Z^-1 J^T in numpy."""
    J, A = layout.dense(asked), layout.dense(seen)
    return J @ np.linalg.solve(RIDGE * np.eye(layout.parameters) + A.T @ A, J.T)
