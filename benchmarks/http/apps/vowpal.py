"""Vowpal Wabbit's squarecb over action-dependent features, with crosses of context and action."""

from importlib import import_module

import numpy as np

from benchmarks.http.apps.wire import Array, arm_rows, served

workspace = import_module("vowpalwabbit").Workspace(
    "--cb_explore_adf --squarecb --cb_type mtr -q ca --quiet --random_seed 1"
)
rng = np.random.default_rng(1)
actions = [
    "|a " + " ".join(f"a{k}:{value:.6g}" for k, value in enumerate(row)) for row in arm_rows()
]


def shared(context: Array) -> str:
    """Return the line of a context."""
    return "shared |c " + " ".join(f"c{k}:{value:.9g}" for k, value in enumerate(context))


def choose(context: Array) -> tuple[int, float | None]:
    """Draw an arm from the predicted distribution."""
    p = np.array(workspace.predict([shared(context), *actions]))
    arm = int(rng.choice(len(p), p=p / p.sum()))
    return arm, float(p[arm])


def learn(context: Array, arm: int, reward: float, probability: float | None) -> None:
    """Learn the cost of the shown arm, with its probability."""
    lines = list(actions)
    lines[arm] = f"0:{-reward:g}:{probability or 1.0:.9g} {lines[arm]}"
    workspace.learn([shared(context), *lines])


app = served(choose, learn)
