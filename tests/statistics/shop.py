"""A pet shop of 10 arms whose click chances are known, policies that learned in it, and frozen."""

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from service.bandits.version import Version
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.state.artifacts import read_artifact
from service.state.decider import Decider
from service.state.events import (
    ExperimentDefined,
    Outcome,
    Rewarded,
    VersionActivated,
    VersionStaged,
    decode_event,
    encode_event,
)
from service.state.fold import State
from service.state.learner import Learner
from service.training.trainer import train

Array = np.ndarray[Any, np.dtype[np.float64]]

PERSONAS = ["new_puppy_parent", "cat_connoisseur", "budget_shopper", "fish_hobbyist"]
CATEGORIES = ["Dog Food", "Dog Toy", "Cat Food", "Cat Toy", "Fish Supplies"]
CLICKS = np.array(
    [
        [0.40, 0.50, 0.10, 0.05, 0.02],
        [0.05, 0.02, 0.55, 0.45, 0.05],
        [0.25, 0.15, 0.40, 0.20, 0.20],
        [0.02, 0.02, 0.10, 0.08, 0.60],
    ]
)  # (persona, category)
ARMS = {f"{category} {n}": category for n in (1, 2) for category in CATEGORIES}
CHANCES = np.array([CLICKS[:, CATEGORIES.index(category)] for category in ARMS.values()]).T
"""(persona, arm): two arms of each category, told apart by disjoint policies alone."""

NET = {"hidden": [16], "embedding": 4, "training": {"first": 200, "epochs": 20}}
POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto"},
    "linucb": {"kind": "linucb"},
    "linucb_disjoint": {"kind": "linucb", "disjoint": True, "features": ["persona"]},
    "lints": {"kind": "lints"},
    "lints_disjoint": {"kind": "lints", "disjoint": True, "features": ["persona"]},
    "neural_linear_ts": {"kind": "neural_linear_ts", **NET},
    "neural_linear_ts_disjoint": {"kind": "neural_linear_ts", "disjoint": True, **NET},
    "neural_ucb": {"kind": "neural_ucb", **NET},
    "popularity": {"kind": "popularity"},
    "epsilon_greedy": {"kind": "epsilon_greedy"},
    "random": {"kind": "random"},
    "linucb_constant": {"kind": "linucb", "alpha": 2.0},
    "neural_linucb": {"kind": "neural_linucb", **NET},
    "neural_linucb_disjoint": {"kind": "neural_linucb", "disjoint": True, **NET},
    **{
        f"neural_ucb_{form}": {"kind": "neural_ucb", "form": form, **NET}
        for form in ("diagonal", "full")
    },
    **{
        f"neural_ts_{form}": {"kind": "neural_ts", "form": form, **NET}
        for form in ("last_layer", "diagonal", "full")
    },
    "neural_glm_ts": {"kind": "neural_glm_ts", **NET},
    "bootstrap_ensemble": {"kind": "bootstrap_ensemble", **NET},
    "bootstrap_ensemble_ucb": {"kind": "bootstrap_ensemble", "rule": "ucb", "alpha": 1.0, **NET},
    "mc_dropout": {"kind": "mc_dropout", **NET},
    "mc_dropout_ucb": {"kind": "mc_dropout", "rule": "ucb", "alpha": 1.0, **NET},
    "greedy": {"kind": "greedy"},
    "greedy_disjoint": {"kind": "greedy", "disjoint": True, "features": ["persona"]},
    "greedy_neural": {"kind": "greedy", "regressor": "neural", **NET},
    "greedy_popularity": {"kind": "greedy", "regressor": "popularity"},
    "squarecb": {"kind": "squarecb"},
    "squarecb_disjoint": {"kind": "squarecb", "disjoint": True, "features": ["persona"]},
    "squarecb_neural": {"kind": "squarecb", "regressor": "neural", **NET},
    "squarecb_popularity": {"kind": "squarecb", "regressor": "popularity"},
    "static": {"kind": "static", **NET},
    "static_cold": {"kind": "static"},
}
THOMPSON = [
    *["lints", "lints_disjoint", "neural_linear_ts", "neural_linear_ts_disjoint"],
    *["neural_ts_last_layer", "neural_ts_diagonal", "neural_ts_full"],
    *["neural_glm_ts", "popularity"],
]
"""Those that draw from a bank."""
MEMBERS = ["bootstrap_ensemble", "mc_dropout"]
"""Those that draw a member or a mask."""
CLOSED = ["squarecb", "squarecb_disjoint", "squarecb_neural", "squarecb_popularity"]
"""Those whose probabilities are a function of the means."""
UNIFORM = ["random", "static_cold"]
TRAINED = [name for name, policy in POLICIES.items() if "hidden" in policy]
FLOOR = 0.1


def definition(*, draws: int = 512, **every: Any) -> dict[str, Any]:
    """The shop. draws: of the Thompson policies; every: settings that all policies share."""
    own = {name: {"draws": draws} if name in THOMPSON else {} for name in POLICIES}
    content = {
        "features": {
            "context": {"persona": {"type": "categorical", "values": PERSONAS}},
            "arm": {"category": {"type": "categorical", "values": CATEGORIES}},
            "crosses": ["persona x category"],
        },
        "arms": {arm: {"category": category} for arm, category in ARMS.items()},
        "policies": {name: policy | own[name] | every for name, policy in POLICIES.items()},
    }
    return Definition.model_validate(content).model_dump(mode="json")


def context_of(persona: int) -> Array:
    return np.eye(len(PERSONAS))[persona]


@dataclass
class Shop:
    """A log in memory and the state that it folds to."""

    state: State
    log: list[Append]

    def write(self, event: Any, version: Version | None = None) -> None:
        position = self.state.position + 1
        self.log.append(Append("shop", encode_event(event), {str(position): ""}))
        self.state.apply(position, event, version)

    def events(self) -> list[Any]:
        return [decode_event(entry.payload) for entry in self.log]

    def define(self, **every: Any) -> None:
        revision = self.state.revision + 1
        event = ExperimentDefined(
            at=0.0, revision=revision, schema_version=1, definition=definition(**every)
        )
        self.write(event)

    def visit(self, learner: Learner, persona: int, seed: int, uniform: float) -> None:
        """Decide, click or not, learn."""
        context, candidates = context_of(persona), self.state.candidates
        _, slate = decide(Decider.serving(learner), context, candidates, 1, seed)
        arm = slate.arms[0]
        row = self.state.schema.row(context, candidates.x[arm])
        reward = float(uniform < CHANCES[persona, arm])
        self.write(
            Rewarded(
                at=0.0,
                decision=f"{self.state.position}",
                policy=learner.name,
                schema_version=1,
                settled=[Outcome(candidates.ids[arm], reward, row)],
            )
        )

    def train(self, learner: Learner) -> None:
        """A trained version serves from here, as the trainer would have handed it over."""
        torch.set_num_threads(1)  # as the trainer's process does
        store = MemoryStore()
        asyncio.run(store.commit(self.log))
        artifact = asyncio.run(train(store, self.state, learner))
        version = {"at": 0.0, "policy": learner.name, "born": 1, "version": 1}
        staged = VersionStaged(
            **version, artifact="", size=0, watermark=self.state.position, rewards=learner.rewards
        )
        self.write(staged, read_artifact(learner, artifact))
        self.write(VersionActivated(**version))


@cache
def learned(seed: int) -> Shop:
    """Every policy after 300 visits of its own; nets trained after the 200th."""
    shop = Shop(State("shop"), [])
    shop.define()
    for index, learner in enumerate(shop.state.learners.values()):
        rng = np.random.default_rng((seed, index))
        for visit in range(300):
            shop.visit(learner, int(rng.integers(4)), int(rng.integers(2**63)), rng.random())
            if learner.training_due and visit == 199:
                shop.train(learner)
    return shop


@cache
def frozen(epsilon: float = 0.0, draws: int = 512, seed: int = 0) -> State:
    """The same, as it stands: rewards are logged from here on and not learned."""
    shop = learned(seed)
    shop.define(learning=False, epsilon=epsilon, draws=draws)
    return State.restore(shop.state.snapshot())
