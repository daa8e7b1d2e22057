"""Measured times of decisions, and decisions that several threads make at once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import numpy as np
import pytest

from service.bandits.heads import Bank
from service.decide.decision_times import DecisionTimes
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.state.decider import Decider
from service.state.events import ArmUpserted, ExperimentDefined, Outcome, Rewarded
from service.state.fold import State
from service.state.footprint import decision_bytes

ARMS, COLUMNS = 12, 6


def shop(kind: str, arms: int = ARMS, **settings: Any) -> State:
    """One policy over two vectors, with a reward for each arm that nobody has read yet."""
    features = {
        "context": {"user": {"type": "vector", "size": COLUMNS}},
        "arm": {"item": {"type": "vector", "size": COLUMNS}},
    }
    rng, state = np.random.default_rng(0), State("shop")
    definition = {"features": features, "policies": {"p": {"kind": kind, **settings}}}
    Definition.model_validate(definition)
    state.apply(1, ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=definition))
    for arm in range(arms):
        item = {"item": rng.normal(size=COLUMNS).tolist()}
        state.apply(state.position + 1, ArmUpserted(at=0.0, arm=str(arm), features=item))
    learn(state, rng, ARMS)
    return state


def learn(state: State, rng: np.random.Generator, rewards: int) -> None:
    for number in range(rewards):
        row = state.schema.row(rng.normal(size=COLUMNS), state.candidates.x[number])
        settled = [Outcome(str(number), float(rng.random()), row)]
        key = f"{state.position}"
        event = Rewarded(at=0.0, decision=key, policy="p", schema_version=1, settled=settled)
        state.apply(state.position + 1, event)


def test_a_size_is_unknown_until_measured_and_then_a_moving_average() -> None:
    times, learner = DecisionTimes(), shop("linucb").learners["p"]
    time = times.of(learner.active, 50, 1)
    assert time.seconds == inf
    for measured, expected in [(0.008, 0.008), (0.004, 0.007), (0.004, 0.00625)]:
        time.observe(measured)
        assert time.seconds == pytest.approx(expected)
    assert times.of(learner.active, 60, 1) is time
    assert times.of(learner.active, 64, 1).seconds == inf
    assert times.of(learner.active, 50, 2).seconds == inf
    assert times.of(shop("linucb").learners["p"].active, 50, 1).seconds == inf


@pytest.mark.parametrize("settings", [{}, {"disjoint": True}])
def test_a_head_that_rewards_have_changed_is_another_size(settings: dict[str, Any]) -> None:
    times, state = DecisionTimes(), shop("linucb", **settings)
    learner = state.learners["p"]
    stale = times.of(learner.active, ARMS, 1)
    decide(Decider.serving(learner), np.ones(COLUMNS), state.candidates, 1, 1)
    assert times.of(learner.active, ARMS, 1) is not stale


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns after a microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("linucb", {}),
        ("lints", {"disjoint": True}),
        ("bootstrap_ensemble", {}),
        ("neural_glm_ts", {}),
        ("neural_ucb", {"form": "full"}),
        ("neural_ts", {"form": "diagonal"}),
        ("popularity", {}),
    ],
)
def test_threads_that_decide_at_once_find_the_same(kind: str, settings: dict[str, Any]) -> None:
    """A stale head is derived by whoever reads it first, and perhaps by several."""
    state, twin = shop(kind, **settings), shop(kind, **settings)
    context, decider = np.ones(COLUMNS), Decider.serving(state.learners["p"])
    with ThreadPoolExecutor(4) as threads:
        for seed in range(10):
            expected, _ = decide(
                Decider.serving(twin.learners["p"]), context, twin.candidates, 1, seed
            )
            asked = [
                threads.submit(decide, decider, context, state.candidates, 1, seed)
                for _ in range(4)
            ]
            for one in asked:
                np.testing.assert_array_equal(one.result()[0], expected)
            for each in (state, twin):
                learn(each, np.random.default_rng(seed), 3)


@pytest.mark.usefixtures("hurried")
def test_threads_that_name_new_arms_at_once_draw_the_same() -> None:
    bank, rng = Bank(64, "a policy"), np.random.default_rng(0)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(200):
            asked = [[str(arm) for arm in rng.integers(500, size=3)] for _ in range(4)]
            drawn = [threads.submit(bank.columns, names) for names in asked]
            for names, one in zip(asked, drawn, strict=True):
                np.testing.assert_array_equal(one.result(), Bank(64, "a policy").columns(names))


def test_memory_of_a_ranking_is_that_of_its_draws_by_arms() -> None:
    """512 draws of 10,000 arms are 41 MB, and ranking holds four copies."""
    version = shop("lints").learners["p"].active
    assert decision_bytes(version, 512, 10_000, 2) == pytest.approx(4 * 41e6, rel=0.05)
    assert decision_bytes(version, 512, 10_000, 1) < 4e6
    own = shop("lints", disjoint=True).learners["p"].active
    assert decision_bytes(own, 512, 1_000, 1) > 1_000 * 8 * 2 * own.columns**2
