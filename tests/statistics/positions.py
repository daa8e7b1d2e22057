"""A page of slots, of which users see the k-th with a known chance; policies that learn from it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.settle.marks import MarkedSettlement, ShownReward
from service.settle.weighing import weigh
from service.state.decider import Decider
from service.state.decisions import Shown
from service.state.events import ExperimentDefined
from service.state.fold import State

KINDS: dict[str, dict[str, Any]] = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints", "draws": 64},
    "popularity": {"kind": "popularity", "draws": 64},
}


def falling(arms: int, best: float, gap: float) -> list[float]:
    """Chances of a click on an arm that is seen; the first arm is the best."""
    return [best - gap * number for number in range(arms)]


@dataclass
class Page:
    """clicks: by arm; looks: chance that a user sees each slot; told: `reward.examination`."""

    kind: str
    clicks: list[float]
    looks: list[float]
    told: object
    seed: int
    state: State = field(default_factory=lambda: State("page"))
    shown_first: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        arms = {f"arm{number}": {"name": f"arm{number}"} for number in range(len(self.clicks))}
        definition = Definition.model_validate(
            {
                "features": {"arm": {"name": {"type": "categorical", "values": list(arms)}}},
                "arms": arms,
                "policies": {"p": KINDS[self.kind]},
                "reward": {"examination": self.told},
            }
        )
        self.state.apply(
            1,
            ExperimentDefined(
                at=0.0,
                revision=1,
                schema_version=1,
                definition=definition.model_dump(mode="json"),
            ),
        )
        self._rng = np.random.default_rng(self.seed)

    def visit(self) -> None:
        """One slate, and what came of it at once."""
        state, rng = self.state, self._rng
        learner, candidates, slots = state.learners["p"], state.candidates, len(self.looks)
        _, slate = decide(
            Decider.serving(learner), np.empty(0), candidates, slots, int(rng.integers(2**62))
        )
        seen = rng.random(slots) < self.looks
        clicked = rng.random(slots) < np.array(self.clicks)[slate.arms]
        arms = [
            ShownReward(
                Shown(candidates.ids[arm], 1.0, state.schema.row(np.zeros(0), candidates.x[arm])),
                float(seen[place] and clicked[place]),
                place + 1,
            )
            for place, arm in enumerate(slate.arms)
        ]
        rules = state.definition.reward
        settlement = MarkedSettlement(f"d{state.position}", "p", 1, 0.0, 0.0, arms, True, "", rules)
        weigh(state, settlement)
        state.apply(state.position + 1, settlement.settlement(0.0))
        self.shown_first.append(slate.arms[0])

    def run(self, visits: int) -> "Page":
        for _ in range(visits):
            self.visit()
        return self

    @property
    def first(self) -> int:
        """The arm that was shown first most often in the last tenth of the visits."""
        return int(np.bincount(self.shown_first[-len(self.shown_first) // 10 :]).argmax())
