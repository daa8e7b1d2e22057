"""A batch of contexts has the probabilities, the choices and the bits of as many single ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bandits.heads import Observation
from service.decide import scoring
from service.decide.scoring import decide
from service.state.decider import Decider
from tests.unit.test_policy_settings import KINDS
from tests.unit.test_wins import catalogue, learner, train

SMALL_NET = {"hidden": [16, 8], "embedding": 4}
NETS = ("neural_linear_ts", "neural_linucb", "neural_ucb", "neural_ts", "neural_glm_ts",
        "bootstrap_ensemble", "mc_dropout", "static")  # fmt: skip
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((kind, SMALL_NET if kind in NETS else {}) for kind in sorted(KINDS)),
    ("linucb", {"disjoint": True}),
    ("linucb", {"alpha": 1.5}),
    ("lints", {"disjoint": True, "scale": 0.5}),
    ("neural_ucb", {"form": "diagonal", **SMALL_NET}),
    ("bootstrap_ensemble", {"rule": "ucb", **SMALL_NET}),
    ("mc_dropout", {"rule": "ucb", **SMALL_NET}),
    ("greedy", {"regressor": "popularity"}),
    ("greedy", {"regressor": "neural", **SMALL_NET}),
    ("squarecb", {"disjoint": True}),
    ("squarecb", {"regressor": "popularity"}),
    ("squarecb", {"regressor": "neural", **SMALL_NET}),
]


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(SETTINGS),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([1, 2, 10, 70, 600]),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([0, 5, 200]),
    st.sampled_from([1e-9, 1.0]),
    st.integers(0, 2**32),
)
def test_a_batch_decides_as_single_questions_do(
    policy: tuple[str, dict[str, Any]],
    epsilon: float,
    arms: int,
    levels: int,
    rewards: int,
    size: float,
    seed: int,
) -> None:
    """Of one context, of three, and of seventy."""
    kind, more = policy
    one, candidates = learner(kind, epsilon=epsilon, **more), catalogue(arms, levels, seed)
    if kind in NETS and seed % 2:
        train(one)
    rng, head = np.random.default_rng(seed), one.active.head
    if head is not None:
        for _ in range(min(rewards, 20) if "form" in more else rewards):
            context, arm = rng.standard_normal(4), int(rng.integers(arms))
            phi = one.active.encoder(one.view.design(context[None], candidates.x[[arm]]))[0]
            head.observe(Observation(str(arm), phi, float(rng.random() < 0.3)))
    for count in (1, 3, 70 if arms < 600 else 5):
        contexts = list(size * rng.standard_normal((count, 4)))
        seeds = rng.integers(2**62, size=count).tolist()
        batch = scoring.decide_batch(Decider.serving(one), contexts, candidates, seeds)
        for context, own, (p, slate) in zip(contexts, seeds, batch, strict=True):
            alone, chosen = decide(Decider.serving(one), context, candidates, 1, own)
            np.testing.assert_array_equal(p, alone)
            assert slate == chosen


@pytest.mark.parametrize("kind", ["linucb", "epsilon_greedy", "random"])
def test_a_floor_is_shared_by_the_arms_however_many_contexts_there_are(kind: str) -> None:
    """0.2 over 10 arms is 0.02 for each. A batch used to share it among its contexts, and so
    gave 0.2 / 3 to each arm and was refused, or logged."""
    one, candidates = learner(kind, epsilon=0.2), catalogue(10, 0, 1)
    for p, _ in scoring.decide_batch(Decider.serving(one), [np.ones(4)] * 3, candidates, [0, 1, 2]):
        assert p.sum() == pytest.approx(1.0)
        assert p.min() >= 0.02
