"""Logs of decisions whose truth is known, as the arrays that estimators take."""

from dataclasses import dataclass

import numpy as np

from service.analysis.estimators import Array, Logged

CONTEXTS, ARMS = 4, 10


@dataclass(frozen=True)
class World:
    """Chances by (context, arm).

    units   decisions of one unit are made by one logger of two (0: each by both)
    range   rewards are its ends, drawn by the chance of the upper
    """

    reward: Array
    logger: Array
    target: Array
    units: int = 0
    range: tuple[float, float] = (0.0, 1.0)

    @property
    def truth(self) -> float:
        low, high = self.range
        return float(low + (high - low) * (self.target * self.reward).sum(axis=1).mean())


def floored(arms: Array, epsilon: float) -> Array:  # (C,) -> (C, K)
    p = np.full((CONTEXTS, ARMS), epsilon / ARMS)
    p[np.arange(CONTEXTS), arms.astype(int)] += 1 - epsilon
    return p


def world(
    seed: int,
    *,
    clicks: float = 0.3,
    floor: float = 0.5,
    own: float = 0.3,
    units: int = 0,
    range_: tuple[float, float] = (0.0, 1.0),
) -> World:
    """A logger that favours one arm a context, any, and else explores; a target that favours the
    best. clicks: their mean rate; floor, own: the share of chance in logger and target."""
    rng = np.random.default_rng((seed, 7))
    reward = rng.beta(2.0, 2.0 / clicks - 2.0, (CONTEXTS, ARMS))
    return World(
        reward,
        floored(rng.integers(0, ARMS, CONTEXTS), floor),
        floored(reward.argmax(axis=1), own),
        units,
        range_,
    )


WORLDS = {
    "explored": world(1, floor=1.0),
    "skewed": world(2, floor=0.5),
    "narrow": world(3, floor=0.3, own=0.2),
    "rare": world(4, clicks=0.05, floor=0.5),
    "losses": world(5, floor=0.5, range_=(-35.0, 5.0)),
    "units": world(6, floor=1.0, units=400),
}


def log_of(world: World, rows: int, seed: int) -> Logged:
    """Of a world with units the loggers are the target's own and the world's, half each, one for
    every unit; weights are by the mixture of both, as Forage divides by it. The guess is a
    regression's, cross-fitted, over the crosses of context and arm."""
    rng = np.random.default_rng((seed, 11))
    context = rng.integers(0, CONTEXTS, rows)
    logger, group = world.logger[context], None
    behaviour = logger
    if world.units:
        group = rng.integers(0, world.units, rows)
        own = (rng.random(world.units) < 0.5)[group]
        logger = np.where(own[:, None], world.target[context], logger)
        behaviour = (world.target[context] + world.logger[context]) / 2
    arm = (logger.cumsum(axis=1) > rng.random(rows)[:, None]).argmax(axis=1)
    low, high = world.range
    clicked = rng.random(rows) < world.reward[context, arm]
    every, target = np.arange(rows), world.target[context]
    reward = np.where(clicked, high, low)
    cells = np.eye(CONTEXTS * ARMS).reshape(CONTEXTS, ARMS, -1)  # a column a context and arm
    _, guess = cross_fitted(cells[context, arm], reward, cells[context], seed=seed)
    guess = np.clip(guess, low, high)
    return Logged(
        reward=reward,
        behaviour=behaviour[every, arm],
        target=target[every, arm],
        guess=guess[every, arm],
        target_guess=(target * guess).sum(axis=1),
        group=group,
        range=world.range,
    )


def cross_fitted(
    rows: Array,  # (n, m) features of what was shown
    reward: Array,  # (n,)
    every: Array,  # (n, K, m) features of every candidate
    *,
    ridge: float = 1.0,
    folds: int = 5,
    seed: int = 0,
) -> tuple[Array, Array]:  # (n,), (n, K)
    """Guesses by ridge regression, each from a fit to the other folds: of the shown, of every."""
    n, m = rows.shape
    fold = np.random.default_rng(seed).permutation(n) % folds
    shown, all_ = np.empty(n), np.empty(every.shape[:2])
    for number in range(folds):
        own = fold == number
        x, r = rows[~own], reward[~own]
        center = float(r.mean()) if len(r) else 0.0
        w = np.linalg.solve(x.T @ x + ridge * np.eye(m), x.T @ (r - center))
        shown[own], all_[own] = rows[own] @ w + center, every[own] @ w + center
    return shown, all_
