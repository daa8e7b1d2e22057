"""Shares of wins that are counted without a table of all scores are those of the table."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.experiment import Definition
from service.features import Schema
from service.policies import rules, table
from service.policies.candidates import Candidates
from service.policies.learner import Learner
from service.posterior import Bank, BetaHead, RidgeHead, wins
from service.posterior.wins import Weights

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


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["linucb", "lints", "neural_linear_ts", "neural_linucb"]),
    st.sampled_from([1, 33, 70, 256, 257, 600, 2_100]),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([0, 5, 400]),
    st.sampled_from([1e-4, 1.0, 1e5]),
    st.integers(0, 2**32),
)
def test_a_shared_heads_chances_are_those_of_its_table(
    kind: str, arms: int, levels: int, rewards: int, size: float, seed: int
) -> None:
    more: dict[str, Any] = {"scale": 0.5} if kind == "lints" and seed % 2 else {}
    if kind.startswith("neural"):
        more |= {"hidden": [16, 8], "embedding": 4}
    policy, candidates = learner(kind, **more), catalogue(arms, levels, seed)
    rng = np.random.default_rng(seed)
    head = policy.active.head
    assert isinstance(head, RidgeHead)
    truth = rng.standard_normal(len(head.b))
    for phi in rng.standard_normal((rewards, len(head.b))):
        head.observe("0", phi, float(phi @ truth))
    context = size * rng.standard_normal(4)
    chances = policy.chances(context, candidates)
    np.testing.assert_array_equal(chances, by_table(policy, context, candidates))
    assert chances.sum() == pytest.approx(1.0)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many arms."""
    monkeypatch.setattr(table, "TABLE", 0)
    monkeypatch.setattr(table, "MANY", 0)


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
        np.testing.assert_array_equal(policy.chances(context, candidates), expected)
        head.observe("0", rng.standard_normal(len(head.b)), float(step % 3))


def test_scores_a_millionth_apart_are_told_apart_in_every_draw() -> None:
    """Half of the rows lead by 1e-9 of the score, far below float32: they share all wins."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(5)
    phi = np.stack([row * (1 + 1e-9 * (index % 2)) for index in range(4)])
    exact = np.abs(rng.standard_normal((5, 64))) * np.sign(row)[:, None]
    weights = Weights.of(exact, np.ones(64))
    found = wins.linear(phi, weights, np.ones(4, np.intp))
    assert found is not None
    np.testing.assert_allclose(found, [0.0, 0.5, 0.0, 0.5], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-12, 1e12, 0.0])
def test_lengths_that_float32_does_not_hold_are_left_to_the_table(size: float) -> None:
    weights = Weights.of(np.ones((2, 16)), np.ones(16))
    assert wins.linear(np.full((3, 2), size), weights, np.ones(3, np.intp)) is None


def test_rows_that_cannot_win_are_left_out_and_all_that_win_are_not() -> None:
    """A learned head over 5,000 rows: under a tenth of them is looked at."""
    rng = np.random.default_rng(3)
    head, bank = RidgeHead(6, 1.0, None), Bank(128, "k")
    truth = rng.standard_normal(6)
    for phi in rng.standard_normal((3_000, 6)):
        head.observe("", phi, float(phi @ truth + 0.3 * rng.standard_normal()))
    rows = rng.standard_normal((5_000, 6))
    mean, variance = head.spread(rows)
    kept = wins.contenders(mean, np.sqrt(variance), rows, head.posterior.draws(bank, 1.0))
    assert kept is not None
    assert len(kept) < 500
    winners = head.draw(rows, [], bank).argmax(axis=1)
    assert set(winners.tolist()) <= set(kept.tolist())


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
        head.observe(str(arm), np.zeros(0), float(rng.random() < 0.1))
    if decays:
        head.decay(0.7)
    for _ in range(2):  # what was kept of the first decision serves until a count changes
        chances = policy.chances(np.zeros(4), candidates)
        np.testing.assert_array_equal(chances, by_table(policy, np.zeros(4), candidates))
        head.observe("0", np.zeros(0), 1.0)


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
            np.testing.assert_array_equal(policy.chances(context, candidates), expected)
        phi = policy.active.phi(np.concatenate([context, candidates.x[step % arms]])[None])[0]
        head.observe(str(step % arms), phi, float(rng.random()))
