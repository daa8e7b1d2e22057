"""The plain numpy, in float32, that a policy of each kind cannot do without: what
`benchmarks.scoring` holds a decision against."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

Single = npt.NDArray[np.float32]
Work = Callable[[], Any]

DRAWS: Final = 512
MEMBERS: Final = 10
MASKS: Final = 64
SELECTS: Final = 5
"""Decisions a reward."""

NET: Final = (128, 64, 32)
STATIC: Final = (64, 32)
SHOWN: Final = 0.368
"""Of the members of an ensemble, those that do not see a reward: exp(-1)."""


class Rows:
    """What a head sees of the arms for one decision.

    arms    (n, size - 1) features, float32; the context is one number before them
    nets    layers of each, side by side before the row and a constant; none: the row alone
    """

    def __init__(self, arms: Single, nets: Sequence[list[Single]], *, beside: bool) -> None:
        self._arms, self.nets, self._beside, self.count = arms, nets, beside, len(arms)
        size = arms.shape[1] + 1
        features = sum(layers[-1].shape[1] for layers in nets)
        self.width = features + (size + 1 if beside and nets else 0 if nets else size)

    def __call__(self) -> Single:  # (n, width)
        count = self.count
        x = np.concatenate([np.full((count, 1), 0.5, np.float32), self._arms], axis=1)
        if not self.nets:
            return x
        features = [forward(layers, x) for layers in self.nets]
        if not self._beside:
            return features[0]
        return np.concatenate([*features, x, np.ones((count, 1), np.float32)], axis=1)


def forward(layers: Sequence[Single], x: Single) -> Single:
    """ReLU between the layers, none after the last."""
    for weight in layers[:-1]:
        x = np.maximum(x @ weight, 0)
    return np.asarray(x @ layers[-1])


def net(sizes: Sequence[int], rng: np.random.Generator) -> list[Single]:
    """Layers of random weights."""
    return [
        (rng.standard_normal((wide, narrow)) / np.sqrt(wide)).astype(np.float32)
        for wide, narrow in pairwise(sizes)
    ]


class Head:
    """A ridge head kept by rank-1 updates.

    inverse, factor   (m, m): S and R with R^T R = S; mean: (m,)
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        half = rng.standard_normal((size, size)) / np.sqrt(size)
        self.factor = np.linalg.inv(np.linalg.cholesky(np.eye(size) + half @ half.T)).astype(
            np.float32
        )
        self.inverse = self.factor.T @ self.factor
        self.total = rng.standard_normal(size).astype(np.float32)
        self.mean = self.inverse @ self.total

    def update(self, x: Single, *, spreads: bool) -> None:  # (m,)
        """A reward: S <- S - S x (S x)^T / (1 + x^T S x); spreads: and the same of its factor."""
        self.total += x
        moved = self.inverse @ x
        share = 1 + x @ moved
        self.inverse -= np.multiply.outer(moved, moved / share)
        if spreads:
            half = self.factor @ x
            self.factor -= np.multiply.outer(
                half, (half @ self.factor) * (1 - 1 / np.sqrt(share)) / (share - 1)
            )
        self.mean = self.inverse @ self.total


def _won(scores: npt.NDArray[Any]) -> object:  # (M, n)
    """How often each arm was the best."""
    return np.bincount(scores.argmax(axis=1), minlength=scores.shape[1]) / len(scores)


def _ucb(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    head = Head(rows.width, rng)

    def choose() -> object:
        x = rows()
        white = x @ head.factor.T
        return np.argmax(x @ head.mean + np.sqrt(np.einsum("nm,nm->n", white, white)))

    x = rows()[0]
    return choose, lambda: head.update(x, spreads=True)


def _thompson(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    head = Head(rows.width, rng)
    normals = rng.standard_normal((DRAWS, rows.width)).astype(np.float32)

    def choose() -> object:
        return _won((head.mean + normals @ head.factor) @ rows().T)

    x = rows()[0]
    return choose, lambda: head.update(x, spreads=True)


def _mean(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    head, x = Head(rows.width, rng), rows()[0]
    return lambda: np.argmax(rows() @ head.mean), lambda: head.update(x, spreads=False)


def _members(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    heads = [Head(rows.width, rng) for _ in range(MEMBERS)]
    x = rows()[0]

    def choose() -> object:
        return _won(np.stack([head.mean for head in heads]) @ rows().T)

    def update() -> None:
        for head in heads[round(SHOWN * MEMBERS) :]:
            head.update(x, spreads=False)

    return choose, update


def _masks(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    """The masks of the first layer are part of the weights of the second, and the linear ones after
    the last ReLU are one vector."""
    head = Head(rows.width, rng)
    first, second, last = rows.nets[0]
    kept = [
        rng.integers(2, size=(MASKS, each.shape[1])).astype(np.float32) for each in (first, second)
    ]
    weights = rng.standard_normal((last.shape[1], 1)).astype(np.float32)
    output = (last @ weights)[:, 0] * kept[1]  # (T, h2)
    wide = (kept[0][:, :, None] * second).transpose(1, 0, 2).reshape(len(second), -1)

    def choose() -> object:
        phi = rows()
        x = phi[:, -1 - len(first) : -1]
        hidden = np.maximum(np.maximum(x @ first, 0) @ wide, 0).reshape(len(x), MASKS, -1)
        masked = np.einsum("nth,th->tn", hidden, output)
        return _won(masked + (phi @ head.mean - masked.mean(axis=0)))

    row = rows()[0]
    return choose, lambda: head.update(row, spreads=False)


def _output(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    output = rng.standard_normal(rows.width).astype(np.float32)
    return lambda: np.argmax(np.maximum(rows(), 0) @ output), lambda: None


def _clicks(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    arms = rows.count
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    counts = np.ones((arms, 2))
    drawn = np.stack([rng.permutation(DRAWS) for _ in range(arms)], axis=1)
    table = levels[drawn].astype(np.float32)  # (M, n)
    found = _won(table)
    rewards = 0

    def update() -> None:
        nonlocal found, rewards
        arm, rewards = rewards % arms, rewards + 1
        counts[arm] += (1.0, 0.0) if arm % 3 == 0 else (0.0, 1.0)
        table[:, arm] = betaincinv(*counts[arm], levels)[drawn[:, arm]]
        found = _won(table)

    return lambda: found, update


def _nothing(rows: Rows, rng: np.random.Generator) -> tuple[Work, Work]:
    return lambda: np.full(rows.count, 1 / rows.count), lambda: None


def _plain(arms: Single, rng: np.random.Generator) -> Rows:
    return Rows(arms, [], beside=False)


def _with_twin(arms: Single, rng: np.random.Generator) -> Rows:
    sizes = (arms.shape[1] + 1, *NET)
    return Rows(arms, [net(sizes, rng), net(sizes, rng)], beside=True)


def _bare(arms: Single, rng: np.random.Generator) -> Rows:
    return Rows(arms, [net((arms.shape[1] + 1, *NET), rng)], beside=False)


def _static(arms: Single, rng: np.random.Generator) -> Rows:
    return Rows(arms, [net((arms.shape[1] + 1, *STATIC), rng)], beside=False)


FLOORS: Final[dict[str, tuple[Callable[..., Rows], Callable[..., tuple[Work, Work]]]]] = {
    "ucb": (_plain, _ucb),
    "thompson": (_plain, _thompson),
    "mean": (_plain, _mean),
    "net ucb": (_with_twin, _ucb),
    "net thompson": (_with_twin, _thompson),
    "bare ucb": (_bare, _ucb),
    "bare thompson": (_bare, _thompson),
    "members": (_with_twin, _members),
    "masks": (_with_twin, _masks),
    "output": (_static, _output),
    "clicks": (_plain, _clicks),
    "nothing": (_plain, _nothing),
}


def floor(name: str, arms: int, size: int) -> Work:
    """What a floor does for one decision, from a context to an arm or probabilities; with a reward
    before every fifth."""
    rng = np.random.default_rng(0)
    see, make = FLOORS[name]
    rows = see(rng.standard_normal((arms, size - 1)).astype(np.float32), rng)
    choose, update = make(rows, rng)
    count = 0

    def one() -> object:
        nonlocal count
        count += 1
        if count % SELECTS == 0:
            update()
        return choose()

    return one
