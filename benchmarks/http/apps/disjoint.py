"""Disjoint LinUCB as tutorials write it (Li et al. 2010, algorithm 1): a matrix an arm, inverted
for each decision, in a loop over the arms."""

import numpy as np

from benchmarks.http.apps.wire import ARMS, Array, arm_rows, served

ALPHA = 1.0


class Arm:
    """One arm's ridge regression over context and arm features."""

    def __init__(self, size: int) -> None:
        self.A = np.identity(size)
        self.b = np.zeros(size)

    def bound(self, x: Array) -> float:
        """Return the upper confidence bound."""
        inverse = np.linalg.inv(self.A)
        theta = inverse @ self.b
        return float(theta @ x + ALPHA * np.sqrt(x @ inverse @ x))

    def update(self, x: Array, reward: float) -> None:
        """Learn a reward."""
        self.A += np.outer(x, x)
        self.b += reward * x


rows = arm_rows()
arms = [Arm(4 + rows.shape[1]) for _ in ARMS]


def choose(context: Array) -> tuple[int, float | None]:
    """Return the arm of the highest bound."""
    bounds = [arm.bound(np.concatenate([context, rows[k]])) for k, arm in enumerate(arms)]
    return int(np.argmax(bounds)), None


def learn(context: Array, arm: int, reward: float, probability: float | None) -> None:
    """Learn a reward in the arm's own head."""
    arms[arm].update(np.concatenate([context, rows[arm]]), reward)


app = served(choose, learn)
