"""What the gate lets serve: of nets that learned nothing none, of nets that learned more most."""

import sys
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.learning.forage import Experiment
from benchmarks.learning.gates import Way, trained
from service.state.events import Outcome

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(3_600)]

CHALLENGERS = 10
FEW, MANY = 1_000, 20_000
"""Rewards that the incumbent of better challengers was trained on, and all others."""
KINDS = ["food", "toy", "bed"]
SHOP: dict[str, Any] = {
    "features": {
        "context": {name: {"type": "numeric", "center": 0, "scale": 1} for name in ("age", "size")},
        "arm": {"kind": {"type": "categorical", "values": KINDS}},
    },
    "arms": {kind: {"kind": kind} for kind in KINDS},
    "reward": {"range": [0, 1]},
}


class Shop(Experiment):
    """A shop whose clicks follow waves of age and size, which no line finds.

    first   rewards that the first training falls due at
    """

    def __init__(self, first: int) -> None:
        net = {"hidden": [32], "embedding": 8, "draws": 16}
        training = {"first": first, "growth": 2.0}
        policy = {"kind": "neural_linear_ts", **net, "training": training}
        super().__init__(SHOP | {"policies": {"p": policy}})

    def visit(self, rng: np.random.Generator) -> None:
        """Show an arm by chance, and learn the click."""
        age, size = rng.uniform(-1, 1, 2).tolist()
        arm = int(rng.integers(3))
        clicks = 0.5 + 0.4 * np.sin(5 * age + 2 * arm) * np.cos(4 * size)
        state = self.state
        context = state.schema.encode_context({"age": age, "size": size})
        row = state.schema.row(context, state.rows[KINDS[arm]])
        self.reward(f"d{state.position}", [Outcome(KINDS[arm], float(rng.random() < clicks), row)])

    def judged(self, rng: np.random.Generator) -> str:
        """Visit until the gate ends. Return how."""
        while self.learner.challenger:
            self.visit(rng)
        return type(self.log.events[-1]).__name__


@cache
def incumbent(first: int) -> Shop:
    """A version serves that was trained on so many rewards, after MANY."""
    shop, rng = Shop(first), np.random.default_rng(first)
    for visit in range(MANY):
        shop.visit(rng)
        if visit == first - 1:
            shop.train(gated=False)
    return shop


def outcomes(shop: Shop, way: Way) -> Counter[str]:
    """What becomes of challengers that are trained on MANY rewards."""
    found = Counter[str]()
    for seed in range(CHALLENGERS):
        twin = shop.copy()
        with trained(way, seed, MANY):
            twin.train()
        found[twin.judged(np.random.default_rng(1_000 + seed))] += 1
    return found


def say(capsys: pytest.CaptureFixture[str], what: str, found: Counter[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {dict(found)}\n")


def test_of_nets_that_learned_from_shuffled_rewards_none_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcomes(incumbent(MANY), "shuffled")
    say(capsys, "shuffled rewards", found)
    assert found == {"VersionRejected": CHALLENGERS}


def test_of_nets_whose_descent_diverged_none_serves(capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes(incumbent(MANY), "diverging")
    say(capsys, "a diverging rate", found)
    assert found == {"VersionRejected": CHALLENGERS}


def test_of_nets_that_learned_from_more_rewards_most_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcomes(incumbent(FEW), "true")
    say(capsys, "20 times the rewards", found)
    assert found["VersionActivated"] > CHALLENGERS / 2
