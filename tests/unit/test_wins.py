"""Shares of wins, however they are counted, are those of a whole table of scores in float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.bandits.heads import (
    BetaHead,
    LogisticHead,
    Observation,
    RidgeHead,
    disjoint,
    win_probabilities,
)
from service.bandits.heads.win_probabilities import Weights
from service.bandits.networks import cold_network
from service.definition.experiment import Definition
from service.features.schema import Array, Schema
from service.state.decider import Decider
from service.state.learner import Learner

FEATURES = {
    "context": {"hour": {"type": "numeric"}, "mood": {"type": "vector", "size": 3}},
    "arm": {"image": {"type": "vector", "size": 3}},
    "crosses": ["hour x image", "mood x image"],
}


def learner(kind: str, **more: Any) -> Learner:
    definition = Definition.model_validate(
        {"features": FEATURES, "policies": {"p": {"kind": kind, **more}}}
    )
    policy = definition.policies["p"]
    return Learner("e", "p", policy, definition, Schema(definition.features), 1)


def catalogue(arms: int, levels: int, seed: int) -> Candidates:
    """levels: values that a feature takes, so that some arms are alike; 0: all differ."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((arms, 3))
    return Candidates(tuple(map(str, range(arms))), np.round(x * levels) if levels else x)


def propensities(one: Learner, contexts: Array, candidates: Candidates) -> Array:
    """Of the first context."""
    return one.policy.propensities(one.active, contexts, candidates)[0]


def by_table(policy: Learner, context: Any, candidates: Candidates) -> Any:
    return rules.probabilities(Decider.serving(policy).score(context, candidates))


def train(policy: Learner) -> None:
    """A net of random weights serves."""
    network = cold_network([policy.view.width, 16, 8, 4], "trained")
    output = np.random.default_rng(7).standard_normal((4, 1)), np.ones(1)
    policy.active = policy.version(1, policy.trained(network, output))


SHARED = (
    "linucb", "lints", "neural_linear_ts", "neural_linucb", "neural_ucb", "neural_ts",
    "neural_glm_ts", "greedy", "epsilon_greedy", "squarecb",
)  # fmt: skip


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(SHARED),
    st.sampled_from([1, 33, 70, 257, 600, 1_025, 2_100]),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([0, 5, 400]),
    st.sampled_from([1e-4, 1.0, 1e5]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_a_shared_heads_chances_are_those_of_its_table(
    kind: str, arms: int, levels: int, rewards: int, size: float, trained: bool, seed: int
) -> None:
    """The context has a part in some columns of the arms, and not in others."""
    more: dict[str, Any] = {}
    if kind.startswith("neural"):
        more |= {"hidden": [16, 8], "embedding": 4}
    if kind.endswith("ts") and seed % 2:
        more["scale"] = 0.5
    policy, candidates = learner(kind, **more), catalogue(arms, levels, seed)
    if trained and kind.startswith("neural"):
        train(policy)
    rng = np.random.default_rng(seed)
    head = policy.active.head
    assert isinstance(head, RidgeHead | LogisticHead)
    truth = rng.standard_normal(len(head.A))
    for phi in rng.standard_normal((rewards, len(head.A))):
        said = float(phi @ truth)
        head.observe(Observation("0", phi, float(said > 0) if kind == "neural_glm_ts" else said))
    context = size * rng.standard_normal(4)
    chances = propensities(policy, context[None], candidates)
    np.testing.assert_array_equal(chances, by_table(policy, context, candidates))
    assert chances.sum() == pytest.approx(1.0)


def test_a_policy_of_chance_gives_every_arm_the_same() -> None:
    """Arms that are alike, or not."""
    chances = propensities(learner("random"), np.ones((1, 4)), catalogue(30, 1, 1))
    np.testing.assert_allclose(chances, 1 / 30, rtol=1e-15)


def test_scores_a_billionth_apart_are_told_apart_in_every_draw() -> None:
    """Half of the rows lead by 1e-9 of the score, far below float32: they share all wins. In two
    contexts."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(5)
    phi = np.stack([row * (1 + 1e-9 * (index % 2)) for index in range(8)])
    weights = Weights.of(np.abs(rng.standard_normal((64, 5))) * np.sign(row))
    found = win_probabilities.linear(phi, weights, np.ones(4, np.intp))
    np.testing.assert_allclose(found, [[0.0, 0.5, 0.0, 0.5]] * 2, rtol=1e-12)


@pytest.mark.parametrize("size", [1e-12, 1e12, 0.0, 1e100])
def test_lengths_beyond_single_precision_are_compared_in_float64(size: float) -> None:
    weights = Weights.of(np.ones((16, 2)))
    phi = size * np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    found = win_probabilities.linear(phi, weights, np.ones(3, np.intp))
    expected = [1 / 3, 1 / 3, 1 / 3] if size == 0 else [0.0, 0.5, 0.5]
    np.testing.assert_allclose(found, [expected], rtol=1e-12)


def test_scores_that_are_no_numbers_win_nothing() -> None:
    table = np.array([[1.0, 2.0], [np.nan, 1.0], [np.nan, np.nan], [3.0, 3.0]])
    draws, rows = win_probabilities.winners(table)
    assert (draws.tolist(), rows.tolist()) == ([0, 3, 3], [1, 0, 1])


# -- arms with draws of their own ------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([1, 2, 40, 700]),
    st.sampled_from([0, 1, 30, 2_000]),
    st.sampled_from([16, 64, 512]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_popularitys_chances_are_those_of_its_table(
    arms: int, rewards: int, draws: int, decays: bool, seed: int
) -> None:
    policy = learner("popularity", draws=draws)
    candidates, rng = catalogue(arms, 0, 1), np.random.default_rng(seed)
    head = policy.active.head
    assert isinstance(head, BetaHead)
    for arm in rng.integers(arms, size=rewards).tolist():
        head.observe(Observation(str(arm), np.zeros(0), float(rng.random() < 0.1)))
    if decays:
        head.decay(0.7)
    for step in range(8):  # shares are kept until a count changes
        chances = propensities(policy, np.zeros((1, 4)), candidates)
        np.testing.assert_array_equal(chances, by_table(policy, np.zeros(4), candidates))
        for arm in [0, *rng.integers(arms, size=step % 4 * 7).tolist()]:
            head.observe(Observation(str(arm), np.zeros(0), float(rng.random() < 0.1)))
        if step == 5 and decays:
            head.decay(0.7)


@pytest.mark.parametrize("arms", [3, 300])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_disjoint_draws_chances_are_those_of_their_table(
    arms: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disjoint, "TABLE", 0)
    policy, candidates = learner("lints", disjoint=True, scale=scale), catalogue(arms, 0, 1)
    head = policy.active.head
    assert head is not None
    rng = np.random.default_rng(0)
    for step in range(60):
        context = rng.standard_normal(4)
        if step % 10 == 0:
            expected = by_table(policy, context, candidates)
            np.testing.assert_array_equal(propensities(policy, context[None], candidates), expected)
        phi = policy.active.phi(np.concatenate([context, candidates.x[step % arms]])[None])[0]
        head.observe(Observation(str(step % arms), phi, float(rng.random())))
