"""Sums of the rewards that a head holds, and the level and spread that follow from them."""

from dataclasses import dataclass

import numpy as np

from service.bandits.heads.base import added, fewer
from service.bandits.linalg import Array

REWARD_ROUNDING = 1e-12
"""Share of the sum of squares that rounding may leave where all rewards are equal."""

FIRST_VARIANCE, FIRST_WEIGHT = 0.1, 2.0
"""While all rewards are equal, their variance is assumed to be FIRST_VARIANCE of the squared range
for the first, and to fall as if that weighed FIRST_WEIGHT rewards."""


@dataclass(slots=True)
class RewardSums:
    """Sums of rewards. n: their number; total: their sum; rr: that of their squares."""

    n: float = 0.0
    total: float = 0.0
    rr: float = 0.0

    def add(self, reward: float, weight: float) -> None:
        self.n += weight
        self.total += weight * reward
        self.rr += weight * reward * reward

    def add_many(self, rewards: Array, weights: Array) -> None:  # (k,), (k,)
        """Add rewards one after the other, as `add` does, to the last bit."""
        weighed = weights * rewards
        rows = np.stack((weights, weighed, weighed * rewards), axis=1)
        self.n, self.total, self.rr = added(self.array(), rows).tolist()

    def before_each(self, rewards: Array) -> tuple[Array, Array]:  # (k,) -> (k,), (k,)
        """Return level and variance before each of some rewards that follow each other."""
        steps = np.stack((np.ones(len(rewards)), rewards, rewards * rewards))
        before = np.concatenate((self.array()[:, None], steps[:, :-1]), axis=1)
        n, total, rr = np.add.accumulate(before, axis=1)
        level = total / n
        squares = rr - total * level
        assumed = FIRST_VARIANCE * FIRST_WEIGHT / (n + FIRST_WEIGHT)
        return level, np.where(squares > REWARD_ROUNDING * rr, squares / n, assumed)

    def revise(self, reward: float, was: float, left: float) -> None:
        self.total += left * (reward - was)
        self.rr += left * (reward * reward - was * was)

    def withdraw(self, was: float, left: float) -> None:
        self.n = fewer(self.n, left)
        self.total -= left * was
        self.rr -= left * was * was

    def decay(self, share: float) -> None:
        self.n *= share
        self.total *= share
        self.rr *= share

    @property
    def level(self) -> float:
        """The mean; 0 without rewards."""
        return self.total / self.n if self.n else 0.0

    @property
    def squares(self) -> float:
        """The sum of squared distances from the level."""
        return self.rr - self.total * self.level

    @property
    def spread(self) -> float:
        """The standard deviation; where all rewards are equal, what may be assumed of the next."""
        squares = self.squares
        if squares > REWARD_ROUNDING * self.rr:
            return float(np.sqrt(squares / self.n))
        return float(np.sqrt(FIRST_VARIANCE * FIRST_WEIGHT / (self.n + FIRST_WEIGHT)))

    def array(self) -> Array:
        return np.array([self.n, self.total, self.rr])
