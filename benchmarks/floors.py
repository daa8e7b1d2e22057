"""The least work in plain numpy (float32) for a decision of each kind of policy.

A floor is a pair of functions. The first decides: from a context to an arm or to probabilities.
The second learns one reward.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

Single = npt.NDArray[np.float32]
Work = Callable[[], Any]
Floor = tuple[Work, Work]
Generator = np.random.Generator

DRAWS: Final = 512
MEMBERS: Final = 10
SHOWN: Final = 6  # members that see a reward: each of ten sees it with a chance of 1 - exp(-1)
MASKS: Final = 64
NET: Final = (128, 64, 32)
STATIC_NET: Final = (64, 32)
SELECTS: Final = 5  # decisions for each reward


class Net:
    """ReLU layers of random weights; no ReLU after the last."""

    def __init__(self, sizes: tuple[int, ...], rng: Generator) -> None:
        self.layers = [
            (rng.standard_normal((wide, narrow)) / np.sqrt(wide)).astype(np.float32)
            for wide, narrow in pairwise(sizes)
        ]

    def __call__(self, x: Single) -> Single:  # (n, inputs) -> (n, features)
        for weight in self.layers[:-1]:
            x = np.maximum(x @ weight, 0)
        return np.asarray(x @ self.layers[-1])


class Rows:
    """The rows of one decision: a context of one number, then the features of each arm."""

    def __init__(self, arms: Single) -> None:  # (n, size - 1)
        self.arms, self.count, self.size = arms, len(arms), arms.shape[1] + 1

    def __call__(self) -> Single:  # (n, size)
        return np.concatenate([np.full((self.count, 1), 0.5, np.float32), self.arms], axis=1)


class NetRows(Rows):
    """The rows as the head of a net has them.

    Side by side: the features of the trained net and of its untrained twin, the row, a constant.
    """

    def __init__(self, arms: Single, rng: Generator) -> None:
        super().__init__(arms)
        self.net, self.twin = (Net((self.size, *NET), rng) for _ in range(2))

    def __call__(self) -> Single:  # (n, 2 * NET[-1] + size + 1)
        x = super().__call__()
        return np.concatenate(
            [self.net(x), self.twin(x), x, np.ones((self.count, 1), np.float32)], axis=1
        )


class Head:
    """A ridge head kept by rank-1 updates.

    inverse, factor   (m, m): S and R with R^T R = S
    mean              (m,)
    """

    def __init__(self, size: int, rng: Generator) -> None:
        half = rng.standard_normal((size, size)) / np.sqrt(size)
        spread = np.linalg.cholesky(np.eye(size) + half @ half.T)
        self.factor = np.linalg.inv(spread).astype(np.float32)
        self.inverse = self.factor.T @ self.factor
        self.total = rng.standard_normal(size).astype(np.float32)
        self.mean = self.inverse @ self.total

    def update(self, x: Single) -> None:  # (m,)
        """Learn a reward of 1: S <- S - S x (S x)^T / (1 + x^T S x)."""
        self.total += x
        moved = self.inverse @ x
        self.inverse -= np.multiply.outer(moved, moved / (1 + x @ moved))
        self.mean = self.inverse @ self.total

    def update_with_factor(self, x: Single) -> None:  # (m,)
        """Learn a reward of 1, and update the factor too."""
        share = 1 + x @ self.inverse @ x
        half = self.factor @ x
        self.factor -= np.multiply.outer(
            half, (half @ self.factor) * (1 - 1 / np.sqrt(share)) / (share - 1)
        )
        self.update(x)


def shares(scores: npt.NDArray[Any]) -> object:  # (M, n) -> (n,)
    """Return how often each arm has the highest score."""
    return np.bincount(scores.argmax(axis=1), minlength=scores.shape[1]) / len(scores)


def ucb(rows: Rows, rng: Generator) -> Floor:
    """The argmax of mean + width (Li et al. 2010)."""
    x, head = rows()[0], Head(rows().shape[1], rng)

    def choose() -> object:
        x = rows()
        white = x @ head.factor.T
        return np.argmax(x @ head.mean + np.sqrt(np.einsum("nm,nm->n", white, white)))

    return choose, lambda: head.update_with_factor(x)


def thompson(rows: Rows, rng: Generator) -> Floor:
    """512 draws from a bank of normals, and how often each arm is the best."""
    x, head = rows()[0], Head(rows().shape[1], rng)
    normals = rng.standard_normal((DRAWS, len(x))).astype(np.float32)

    def choose() -> object:
        return shares((head.mean + normals @ head.factor) @ rows().T)

    return choose, lambda: head.update_with_factor(x)


def mean(rows: Rows, rng: Generator) -> Floor:
    """The argmax of the mean."""
    x, head = rows()[0], Head(rows().shape[1], rng)
    return lambda: np.argmax(rows() @ head.mean), lambda: head.update(x)


def members(rows: Rows, rng: Generator) -> Floor:
    """Ten regressors, and how often each arm is the best."""
    x = rows()[0]
    heads = [Head(len(x), rng) for _ in range(MEMBERS)]

    def choose() -> object:
        return shares(np.stack([head.mean for head in heads]) @ rows().T)

    def update() -> None:
        for head in heads[:SHOWN]:
            head.update(x)

    return choose, update


def masks(rows: NetRows, rng: Generator) -> Floor:
    """The net under 64 dropout masks in one product, and the argmax of the mean added.

    The masks of the first layer are part of the weights of the second. The linear layers after the
    last ReLU are one vector.
    """
    x, head = rows()[0], Head(rows().shape[1], rng)
    first, second, last = rows.net.layers
    kept = [
        rng.integers(2, size=(MASKS, each.shape[1])).astype(np.float32) for each in (first, second)
    ]
    weights = rng.standard_normal(last.shape[1]).astype(np.float32)
    output = (last @ weights) * kept[1]  # (T, h2)
    wide = (kept[0][:, :, None] * second).transpose(1, 0, 2).reshape(len(second), -1)

    def choose() -> object:
        phi = rows()
        x = phi[:, -1 - rows.size : -1]
        hidden = np.maximum(np.maximum(x @ first, 0) @ wide, 0).reshape(len(x), MASKS, -1)
        masked = np.einsum("nth,th->tn", hidden, output)
        return shares(masked + (phi @ head.mean - masked.mean(axis=0)))

    return choose, lambda: head.update(x)


def output(rows: Rows, rng: Generator) -> Floor:
    """The argmax of a net's output."""
    net = Net((rows.size, *STATIC_NET, 1), rng)
    return lambda: np.argmax(net(rows())), lambda: None


def clicks(rows: Rows, rng: Generator) -> Floor:
    """512 draws of a Beta distribution for each arm, drawn again for a rewarded arm."""
    arms, levels = rows.count, (np.arange(DRAWS) + 0.5) / DRAWS
    counts = np.ones((arms, 2))
    drawn = np.stack([rng.permutation(DRAWS) for _ in range(arms)], axis=1)
    table = levels[drawn].astype(np.float32)  # (M, n)
    found, rewards = shares(table), 0

    def update() -> None:
        nonlocal found, rewards
        arm, rewards = rewards % arms, rewards + 1
        counts[arm] += (1.0, 0.0) if arm % 3 == 0 else (0.0, 1.0)
        table[:, arm] = betaincinv(*counts[arm], levels)[drawn[:, arm]]
        found = shares(table)

    return lambda: found, update


def nothing(rows: Rows, rng: Generator) -> Floor:
    """1 / K for every arm."""
    return lambda: np.full(rows.count, 1 / rows.count), lambda: None


FLOORS: Final[dict[str, Callable[[Any, Generator], Floor]]] = {
    "ucb": ucb,
    "thompson": thompson,
    "mean": mean,
    "net ucb": ucb,
    "net thompson": thompson,
    "net members": members,
    "net masks": masks,
    "output": output,
    "clicks": clicks,
    "nothing": nothing,
}


def floor(name: str, arms: int, size: int) -> Work:
    """Return one decision of a floor; every fifth learns a reward first."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((arms, size - 1)).astype(np.float32)
    rows = NetRows(features, rng) if name.startswith("net ") else Rows(features)
    choose, update = FLOORS[name](rows, rng)
    count = 0

    def decide() -> object:
        nonlocal count
        count += 1
        if count % SELECTS == 0:
            update()
        return choose()

    return decide


def ridge(size: int) -> Work:
    """Return one fold into a ridge head: A += x x^T, b += r x, and the sums for the noise."""
    x = np.random.default_rng(0).standard_normal(size)
    matrix, total, sums = np.eye(size), np.zeros(size), np.zeros(2)

    def fold() -> None:
        np.add(matrix, np.multiply.outer(x, x), out=matrix)
        np.add(total, x, out=total)
        np.add(sums, (1.0, 1.0), out=sums)

    return fold
