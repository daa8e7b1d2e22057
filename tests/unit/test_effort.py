"""What a decision is estimated to take: more for more of anything, and the right side of what is
made aside."""

from typing import Any

import numpy as np
import pytest

from service.definition.experiment import Definition
from service.definition.features import Schema
from service.serving.engine import ASIDE_MS
from service.state.events import Rewarded, Settled
from service.state.learner import Learner


def learner(kind: str, width: int = 9, **settings: Any) -> Learner:
    """Of `width` columns; `disjoint`: of the context's."""
    seen = {} if kind in ("popularity", "random") else {"features": ["image"]}
    if settings.get("disjoint"):
        seen = {"features": ["hour"]}
    definition = Definition.model_validate(
        {
            "features": {
                "context": {"hour": {"type": "vector", "size": width}},
                "arm": {"image": {"type": "vector", "size": width}},
            },
            "policies": {"policy": {"kind": kind, **seen, **settings}},
        }
    )
    policy = definition.policies["policy"]
    return Learner("shop", "policy", policy, definition, Schema(definition.features), 1)


KINDS = [
    "linucb", "lints", "neural_linear_ts", "neural_linucb", "neural_ucb", "neural_ts",
    "neural_glm_ts", "bootstrap_ensemble", "mc_dropout", "popularity", "greedy", "static", "random",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_more_arms_and_more_slots_take_more(kind: str) -> None:
    policy = learner(kind)
    for slots in (1, 2, 20):
        assert policy.effort_ms(50, slots) < policy.effort_ms(500, slots)
    assert policy.effort_ms(500, 1) < policy.effort_ms(500, 2) < policy.effort_ms(500, 20)
    assert policy.prices.bytes(50, 1) <= policy.prices.bytes(500, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_fifty_arms_is_chosen_on_the_spot(kind: str) -> None:
    assert learner(kind).effort_ms(50, 1) < ASIDE_MS


@pytest.mark.parametrize("kind", ["lints", "popularity", "neural_linear_ts", "neural_glm_ts"])
def test_a_hundred_of_ten_thousand_arms_are_drawn_aside(kind: str) -> None:
    """0.1 to 0.5 s as measured."""
    assert learner(kind).effort_ms(10_000, 100) > 10 * ASIDE_MS


def test_a_wide_head_that_a_reward_has_changed_is_worked_out_aside() -> None:
    """Of 1,000 columns: 60 ms as measured, and 1 ms once that is done."""
    policy = learner("lints", 1_000)
    x = [0.0] * 2_000
    event = Rewarded(
        at=0.0, decision="", policy="policy", schema_version=1, settled=[Settled("a", 1.0, x)]
    )
    policy.fold(1, event)
    assert policy.effort_ms(10, 1) > ASIDE_MS
    assert policy.active.head is not None
    policy.active.head.width(np.zeros((1, 1_000)), ["a"])
    assert policy.effort_ms(10, 1) < ASIDE_MS


def test_each_head_of_its_own_that_changed_counts() -> None:
    policy = learner("lints", 100, disjoint=True)
    before = policy.effort_ms(10, 1)
    for number in range(3):
        settled = [Settled(str(number), 1.0, [0.0] * 200)]
        event = Rewarded(at=0.0, decision="", policy="policy", schema_version=1, settled=settled)
        policy.fold(number + 1, event)
    assert policy.effort_ms(10, 1) - before == pytest.approx(3 * policy.prices.factor / 1e6)


def test_all_parameters_of_a_net_are_always_looked_at_aside() -> None:
    assert learner("neural_ucb", form="full").effort_ms(2, 1) == float("inf")


def test_memory_is_that_of_a_table_of_draws_by_arms() -> None:
    """512 draws of 10,000 arms are 41 MB, of which ranking holds four."""
    assert learner("lints").prices.bytes(10_000, 2) == pytest.approx(4 * 41e6, rel=0.05)
    assert learner("lints").prices.bytes(10_000, 1) < 4e6
