"""What the gate lets serve: of nets that learned nothing none, of nets that learned more most."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from service.definition.experiment import Definition
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.state.artifacts import read_artifact, read_meta, report_of
from service.state.events import (
    AnyEvent,
    ExperimentDefined,
    Outcome,
    Rewarded,
    VersionStaged,
    encode_event,
)
from service.state.fold import State, gates_due
from service.state.learner import Learner
from service.training import trainer
from service.training.fit import NetPlan
from tests.support.clock import run_virtual

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


class Shop:
    """A shop whose clicks follow waves of age and size, which no line finds: its log and state.

    first   rewards that the first training falls due at
    """

    def __init__(self, first: int) -> None:
        self.events: list[AnyEvent] = []
        self.state = State("shop")
        net = {"hidden": [32], "embedding": 8, "draws": 16}
        training = {"first": first, "growth": 2.0}
        policy = {"kind": "neural_linear_ts", **net, "training": training}
        parsed = Definition.model_validate(SHOP | {"policies": {"p": policy}}).completed()
        self.write(
            ExperimentDefined(
                at=0.0,
                revision=1,
                schema_version=1,
                definition=parsed.model_dump(mode="json"),
            )
        )

    @property
    def learner(self) -> Learner:
        return self.state.learners["p"]

    def write(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.state.apply(self.state.position + 1, event)

    def visit(self, rng: np.random.Generator) -> None:
        """Show an arm by chance, and learn the click."""
        age, size = rng.uniform(-1, 1, 2).tolist()
        arm = int(rng.integers(3))
        clicks = 0.5 + 0.4 * np.sin(5 * age + 2 * arm) * np.cos(4 * size)
        state = self.state
        context = state.schema.encode_context({"age": age, "size": size})
        row = state.schema.row(context, state.rows[KINDS[arm]])
        reward = float(rng.random() < clicks)
        self.write(
            Rewarded(
                at=0.0,
                decision=f"d{state.position}",
                policy="p",
                schema_version=1,
                settled=[Outcome(KINDS[arm], reward, row)],
            )
        )

    def train(self, *, gated: bool) -> None:
        """Stage what the trainer makes of the log."""
        store = MemoryStore()
        run_virtual(store.commit([Append("shop", encode_event(e), {}) for e in self.events]))
        artifact = asyncio.run(trainer.train(store, self.state, self.learner))
        assert artifact is not None
        version = read_artifact(self.learner, artifact)
        event = VersionStaged(
            at=0.0,
            policy="p",
            born=1,
            version=version.number,
            artifact="",
            size=0,
            watermark=version.trained_to,
            rewards=version.rewards,
            training=report_of(read_meta(artifact)) if gated else None,
        )
        later = list(enumerate(self.events, 1))[version.trained_to :]
        for position, one in later:
            self.state.catch_up(self.learner, version, position, one, ())
        self.events.append(event)
        self.state.apply(self.state.position + 1, event, version)
        if not gated:
            self.end_gate()

    def end_gate(self) -> str:
        """Log what the gate says, and tell it."""
        [event] = gates_due(self.state, 0.0)
        self.write(event)
        return type(event).__name__

    def judged(self, rng: np.random.Generator) -> str:
        """Visit until the gate ends."""
        while not gates_due(self.state, 0.0):
            self.visit(rng)
        return self.end_gate()


@cache
def incumbent(first: int) -> Shop:
    """A version serves that was trained on so many rewards, after MANY."""
    torch.set_num_threads(1)
    shop, rng = Shop(first), np.random.default_rng(first)
    for visit in range(MANY):
        shop.visit(rng)
        if visit == first - 1:
            shop.train(gated=False)
    return shop


def copy_of(shop: Shop) -> Shop:
    twin = Shop(FEW)
    twin.events, twin.state = list(shop.events), State.restore(shop.state.snapshot())
    return twin


def shuffled(fit: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """The fit, of rewards in any order."""
    rng = np.random.default_rng(seed)

    def fitted(x: Any, column: Any, reward: Any, *rest: Any, **more: Any) -> Any:
        return fit(x, column, rng.permutation(reward), *rest, **more)

    return fitted


def diverging(plan: Callable[[Learner], NetPlan], learner: Learner) -> NetPlan:
    """The plan with a learning rate at which the descent diverges."""
    made = plan(learner)
    object.__setattr__(made, "training", made.training.model_copy(update={"learning_rate": 100.0}))
    return made


def outcomes(shop: Shop, patches: Callable[[int], Any], due: int) -> Counter[str]:
    """What becomes of the challengers. due: rewards that each is trained on."""
    found = Counter[str]()
    for seed in range(CHALLENGERS):
        twin = copy_of(shop)
        own = partial(_differently_seeded, trainer.fit, seed)
        with (
            mock.patch.object(trainer, "fit", own),
            mock.patch.object(trainer, "due_count", return_value=due),
            patches(seed),
        ):
            twin.train(gated=True)
        found[twin.judged(np.random.default_rng(1_000 + seed))] += 1
    return found


def _differently_seeded(
    fit: Callable[..., Any], own: int, *arguments: Any, seed: int, **more: Any
) -> Any:
    return fit(*arguments, seed=1_000 * seed + own, **more)


def say(capsys: pytest.CaptureFixture[str], what: str, found: Counter[str]) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {dict(found)}\n")


def test_of_nets_that_learned_from_shuffled_rewards_none_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcomes(
        incumbent(MANY),
        lambda seed: mock.patch.object(trainer, "fit", shuffled(trainer.fit, seed)),
        MANY,
    )
    say(capsys, "shuffled rewards", found)
    assert found == {"VersionRejected": CHALLENGERS}


def test_of_nets_whose_descent_diverged_none_serves(capsys: pytest.CaptureFixture[str]) -> None:
    plan = partial(diverging, trainer.plan)
    found = outcomes(incumbent(MANY), lambda seed: mock.patch.object(trainer, "plan", plan), MANY)
    say(capsys, "a diverging rate", found)
    assert found == {"VersionRejected": CHALLENGERS}


def test_of_nets_that_learned_from_more_rewards_most_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = outcomes(incumbent(FEW), lambda seed: nullcontext(), MANY)
    say(capsys, "20 times the rewards", found)
    assert found["VersionActivated"] > CHALLENGERS / 2
