"""The least work in plain numpy (float32) for a decision, and for a fold."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Single = npt.NDArray[np.float32]
Work = Callable[[], Any]
Rows = Callable[[], Single]

DRAWS: Final = 512
NET: Final = (128, 64, 32)
SELECTS: Final = 5  # decisions for each reward


def rows_of(arms: int, size: int, rng: np.random.Generator, *, net: bool) -> Rows:
    """Return a function that makes the rows of a decision: a context of one number, then the arm.

    net: the features of a trained net and of its untrained twin, the row and a constant.
    """
    features = rng.standard_normal((arms, size - 1)).astype(np.float32)
    context = np.full((arms, 1), 0.5, np.float32)
    nets = [
        [
            (rng.standard_normal((wide, narrow)) / np.sqrt(wide)).astype(np.float32)
            for wide, narrow in pairwise((size, *NET))
        ]
        for _ in range(2)
    ]

    def plain() -> Single:  # (arms, size)
        return np.concatenate([context, features], axis=1)

    def with_net() -> Single:  # (arms, 2 * NET[-1] + size + 1)
        x, parts = plain(), []
        for *body, last in nets:
            hidden = x
            for weight in body:
                hidden = np.maximum(hidden @ weight, 0)
            parts.append(hidden @ last)
        return np.concatenate([*parts, x, np.ones((arms, 1), np.float32)], axis=1)

    return with_net if net else plain


class Head:
    """A ridge head kept by rank-1 updates.

    inverse, factor   (m, m): S and R with R^T R = S
    mean              (m,)
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        half = rng.standard_normal((size, size)) / np.sqrt(size)
        spread = np.linalg.cholesky(np.eye(size) + half @ half.T)
        self.factor = np.linalg.inv(spread).astype(np.float32)
        self.inverse = self.factor.T @ self.factor
        self.total = rng.standard_normal(size).astype(np.float32)
        self.mean = self.inverse @ self.total

    def update(self, x: Single, *, factor: bool) -> None:  # (m,)
        """Learn a reward of 1: S <- S - S x (S x)^T / (1 + x^T S x); factor: update R too."""
        self.total += x
        moved = self.inverse @ x
        share = 1 + x @ moved
        self.inverse -= np.multiply.outer(moved, moved / share)
        if factor:
            half = self.factor @ x
            self.factor -= np.multiply.outer(
                half, (half @ self.factor) * (1 - 1 / np.sqrt(share)) / (share - 1)
            )
        self.mean = self.inverse @ self.total


def decision(name: str, arms: int, size: int) -> Work:
    """Return one decision; every fifth learns a reward first.

    mean       the argmax of the mean
    ucb        the argmax of mean + width (Li et al. 2010)
    thompson   512 draws from a bank of normals, and how often each arm is the best
    net ...    the same on the row of a net's head
    """
    rng = np.random.default_rng(0)
    rows = rows_of(arms, size, rng, net=name.startswith("net "))
    rule = name.removeprefix("net ")
    x = rows()[0]
    head, normals = Head(len(x), rng), rng.standard_normal((DRAWS, len(x))).astype(np.float32)
    count = 0

    def choose() -> object:
        phi = rows()
        if rule == "thompson":
            scores = (head.mean + normals @ head.factor) @ phi.T
            return np.bincount(scores.argmax(axis=1), minlength=arms) / DRAWS
        if rule == "mean":
            return np.argmax(phi @ head.mean)
        white = phi @ head.factor.T
        return np.argmax(phi @ head.mean + np.sqrt(np.einsum("nm,nm->n", white, white)))

    def decide() -> object:
        nonlocal count
        count += 1
        if count % SELECTS == 0:
            head.update(x, factor=rule != "mean")
        return choose()

    return decide


def fold(size: int) -> Work:
    """Return one fold into a ridge head: A += x x^T, b += r x, and the sums for the noise."""
    x = np.random.default_rng(0).standard_normal(size)
    matrix, total, sums = np.eye(size), np.zeros(size), np.zeros(2)

    def add() -> None:
        np.add(matrix, np.multiply.outer(x, x), out=matrix)
        np.add(total, x, out=total)
        np.add(sums, (1.0, 1.0), out=sums)

    return add
