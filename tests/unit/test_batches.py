"""A batch of decisions: each is what it would be by itself, to the bit."""

from collections.abc import Iterator

import numpy as np
import pytest

from service import engine
from service.policies import together
from service.question import Question
from tests.support.service import Wire, serving

POLICIES = {
    "linucb": {"kind": "linucb"},
    "lints": {"kind": "lints", "draws": 64},
    "disjoint": {"kind": "linucb", "disjoint": True},
    "glm": {"kind": "neural_glm_ts"},
    "ensemble": {"kind": "bootstrap_ensemble"},
    "random": {"kind": "random"},
    "popularity": {"kind": "popularity"},
}
CONTEXTS = [{"persona": who, "age": age} for who in ("cat", "dog") for age in (0.0, 3.0, 9.5)]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Each policy with a floor and without one, after some rewards."""
    with serving() as wire:
        floors = ("", 0.0), ("_floored", 0.2)
        policies = {
            name + suffix: {**settings, "epsilon": epsilon}
            for name, settings in POLICIES.items()
            for suffix, epsilon in floors
        }
        wire.redefine(policies=policies)
        for number, context in enumerate(CONTEXTS * 4):
            for name in policies:
                wire.reward(wire.select(policy=name, context=context), float(number % 3 == 0))
        yield wire


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("floor", ["", "_floored"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_decides_as_each_decision_by_itself(
    wire: Wire, policy: str, floor: str, size: int
) -> None:
    state = wire.services.journal.states["shop"]
    asked = [
        wire.services.engine.look_up(state, Question(context, policy=policy + floor))
        for context in CONTEXTS[:size]
    ]
    learner, candidates = asked[0].learner, asked[0].candidates
    found = together.decide(
        learner, [one.context for one in asked], candidates, [one.seed for one in asked]
    )
    assert len(found) == size
    for one, (p, slate) in zip(asked, found, strict=True):
        alone, shown = engine.decide(learner, one.context, candidates, 1, one.seed)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert np.array_equal(p, alone)
        assert slate == shown
