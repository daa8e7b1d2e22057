"""MABWiser's LinUCB: a ridge regression an arm over a constant and the context."""

from importlib import import_module

import numpy as np

from benchmarks.http.apps.wire import ARMS, Array, served

mab = import_module("mabwiser.mab")
model = mab.MAB(arms=list(range(len(ARMS))), learning_policy=mab.LearningPolicy.LinUCB(alpha=1.0))


def row(context: Array) -> Array:  # (1, 5)
    """Add the constant to a context."""
    return np.concatenate([[1.0], context])[None]


def choose(context: Array) -> tuple[int, float | None]:
    """Return the arm of the highest bound."""
    return int(model.predict(row(context))), None


def learn(context: Array, arm: int, reward: float, probability: float | None) -> None:
    """Learn one reward."""
    model.partial_fit([arm], [reward], row(context))


# It answers only after it has learned.
model.fit([0], [0.0], row(np.zeros(4)))
app = served(choose, learn)
