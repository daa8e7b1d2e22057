"""Shares of wins that are counted without a table of all scores are those of the table."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.networks import cold_network
from service.bandits.policies import rules, thompson, ucb
from service.bandits.policies.candidates import Candidates
from service.bandits.posterior import (
    Bank,
    BetaHead,
    LogisticHead,
    Observation,
    RidgeHead,
    win_probabilities,
)
from service.bandits.posterior.rows import ExactRows
from service.bandits.posterior.win_probabilities import Reach, Weights
from service.definition.experiment import Definition
from service.definition.features import Schema
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


def by_table(policy: Learner, context: Any, candidates: Candidates) -> Any:
    return rules.probabilities(policy.score(context, candidates))


def train(policy: Learner) -> None:
    """A net of random weights serves."""
    network = cold_network([policy.view.width, 16, 8, 4], "trained")
    output = np.random.default_rng(7).standard_normal((4, 1)), np.ones(1)
    policy.active = policy.version(1, policy.trained(network, output))


SHARED = (
    "linucb", "lints", "neural_linear_ts", "neural_linucb", "neural_ucb", "neural_ts",
    "neural_glm_ts", "greedy", "epsilon_greedy",
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
    chances = policy.propensities(context[None], candidates)[0]
    np.testing.assert_array_equal(chances, by_table(policy, context, candidates))
    assert chances.sum() == pytest.approx(1.0)


def test_what_is_made_of_arms_ahead_is_of_the_version_that_serves() -> None:
    """Kept with the arms, and made anew by a version of another net."""
    policy, candidates = learner("neural_linucb", hidden=[16, 8], embedding=4), catalogue(600, 0, 1)
    context = np.ones(4)
    for _ in range(2):
        for _ in range(2):
            expected = by_table(policy, context, candidates)
            np.testing.assert_array_equal(
                policy.propensities(context[None], candidates)[0], expected
            )
        train(policy)


@pytest.mark.parametrize("kind", ["linucb", "lints", "neural_linear_ts", "neural_linucb", "greedy"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_numbers_that_float32_does_not_hold_are_left_to_the_table_of_any_kind(
    kind: str, size: float
) -> None:
    more: dict[str, Any] = {"hidden": [16, 8], "embedding": 4} if kind.startswith("neural") else {}
    policy, whole = learner(kind, **more), catalogue(600, 0, 1)
    candidates = Candidates(whole.ids, size * whole.x)
    for context in (np.ones(4), np.full(4, 1e9)):
        expected = by_table(policy, context, candidates)
        np.testing.assert_array_equal(policy.propensities(context[None], candidates)[0], expected)


def test_a_policy_of_chance_gives_every_arm_the_same() -> None:
    """Arms that are alike, or not."""
    chances = learner("random").propensities(np.ones((1, 4)), catalogue(30, 1, 1))[0]
    np.testing.assert_allclose(chances, 1 / 30, rtol=1e-15)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many arms."""
    monkeypatch.setattr(thompson, "TABLE", 0)
    monkeypatch.setattr(ucb, "MANY", 0)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("alpha", ["anytime", 0.0, 2.5])
@pytest.mark.parametrize("levels", [0, 1])
def test_an_upper_bound_that_single_precision_sorts_first_is_the_highest(
    alpha: Any, levels: int
) -> None:
    policy, candidates = learner("linucb", alpha=alpha), catalogue(300, levels, 1)
    head = policy.active.head
    assert isinstance(head, RidgeHead)
    rng = np.random.default_rng(0)
    for step in range(50):
        context = rng.standard_normal(4)
        expected = by_table(policy, context, candidates)
        np.testing.assert_array_equal(policy.propensities(context[None], candidates)[0], expected)
        head.observe(Observation("0", rng.standard_normal(len(head.b)), float(step % 3)))


def test_scores_a_millionth_apart_are_told_apart_in_every_draw() -> None:
    """Half of the rows lead by 1e-9 of the score, far below float32: they share all wins."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(5)
    phi = np.stack([row * (1 + 1e-9 * (index % 2)) for index in range(4)])
    exact = np.abs(rng.standard_normal((5, 64))) * np.sign(row)[:, None]
    weights = Weights.of(exact, np.ones(64))
    found = win_probabilities.linear(ExactRows(phi), weights, np.ones(4, np.intp))
    assert found is not None
    np.testing.assert_allclose(found, [[0.0, 0.5, 0.0, 0.5]], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-12, 1e12, 0.0])
def test_lengths_that_float32_does_not_hold_are_left_to_the_table(size: float) -> None:
    weights = Weights.of(np.ones((2, 16)), np.ones(16))
    assert (
        win_probabilities.linear(ExactRows(np.full((3, 2), size)), weights, np.ones(3, np.intp))
        is None
    )


@pytest.mark.parametrize("rewards", [0, 3, 40, 3_000])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_pairs_that_cannot_win_are_left_out_and_all_that_win_are_not(
    rewards: int, scale: float
) -> None:
    """5,000 rows of 6: after 3,000 rewards, under a tenth of the pairs is scored."""
    rng = np.random.default_rng(3)
    head, bank = RidgeHead(6, 1.0, None), Bank(128, "k")
    truth = rng.standard_normal(6)
    for phi in rng.standard_normal((rewards, 6)):
        head.observe(Observation("", phi, float(phi @ truth + 0.3 * rng.standard_normal())))
    rows = ExactRows(rng.standard_normal((5_000, 6)))
    found = head.posterior.spread_roughly(rows)
    assert found is not None
    weights = head.posterior.draws(bank, scale)
    reach = Reach(found.mean, np.sqrt(found.variance), found.error, weights.away)
    like = np.ones(5_000, np.intp)
    pruned, whole = (
        win_probabilities.linear(rows, weights, like, reach),
        win_probabilities.linear(rows, weights, like),
    )
    winners = (rows.phi @ weights.exact).argmax(axis=0)
    np.testing.assert_array_equal(whole, [np.bincount(winners, minlength=5_000) / 128])
    np.testing.assert_array_equal(pruned, whole)
    assert reach.scored < (0.1 if rewards == 3_000 else 0.7) * 5_000 * 128


# -- arms with draws of their own ------------------------------------------------------------------


@pytest.mark.usefixtures("small_limits")
@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([1, 2, 40, 700]),
    st.sampled_from([0, 1, 30, 2_000]),
    st.sampled_from([16, 64, 512]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_popularity_s_chances_are_those_of_its_table(
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
    for step in range(8):  # what was kept of a decision serves until a count changes
        chances = policy.propensities(np.zeros((1, 4)), candidates)[0]
        np.testing.assert_array_equal(chances, by_table(policy, np.zeros(4), candidates))
        for arm in [0, *rng.integers(arms, size=step % 4 * 7).tolist()]:
            head.observe(Observation(str(arm), np.zeros(0), float(rng.random() < 0.1)))
        if step == 5 and decays:
            head.decay(0.7)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("arms", [3, 300])
def test_disjoint_draws_chances_are_those_of_their_table(arms: int) -> None:
    policy, candidates = learner("lints", disjoint=True), catalogue(arms, 0, 1)
    head = policy.active.head
    assert head is not None
    rng = np.random.default_rng(0)
    for step in range(60):
        context = rng.standard_normal(4)
        if step % 10 == 0:
            expected = by_table(policy, context, candidates)
            np.testing.assert_array_equal(
                policy.propensities(context[None], candidates)[0], expected
            )
        phi = policy.active.phi(np.concatenate([context, candidates.x[step % arms]])[None])[0]
        head.observe(Observation(str(step % arms), phi, float(rng.random())))
