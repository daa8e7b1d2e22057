"""`squarecb`: chances by the gap of the means, by hand, and the slates that follow from them."""

from collections import Counter
from itertools import permutations
from math import exp, prod
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from service.analysis.rederive import SAME_CHANCE, rounded
from service.bandits.candidates import Candidates
from service.bandits.inverse_gap import inverse_gap
from service.bandits.ranking import draw
from service.bandits.rules import Scores
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.definition.lint import lint
from service.features.schema import Schema
from service.observe.attributions import attributions
from service.state.decider import Decider
from service.state.events import Outcome, Rewarded
from service.state.learner import Learner
from tests.support.tables import bounds

KINDS = ["dog", "cat", "fish"]
ONE = np.ones(3, np.intp)


def learner(low: float = 0.0, high: float = 1.0, **more: Any) -> Learner:
    definition = Definition.model_validate(
        {
            "features": {"arm": {"kind": {"type": "categorical", "values": KINDS}}},
            "policies": {"p": {"kind": "squarecb", **more}},
            "reward": {"range": [low, high], "default": low},
        }
    )
    policy = definition.policies["p"]
    return Learner("e", "p", policy, definition, Schema(definition.features), 1)


def catalogue(*kinds: int) -> Candidates:
    names = tuple(f"{KINDS[kind]} {place}" for place, kind in enumerate(kinds))
    return Candidates(names, np.eye(3)[list(kinds)])


def learn(one: Learner, rewards: dict[int, list[float]]) -> None:
    """Rewards of each kind, of arms that are named for it."""
    position = 1
    for kind, values in rewards.items():
        for reward in values:
            position += 1
            settled = Outcome(
                f"{KINDS[kind]} {kind}", reward, one.schema.layout.pack(np.eye(3)[kind])
            )
            event = Rewarded(
                at=0.0, decision=str(position), policy="p", schema_version=1, settled=[settled]
            )
            one.fold(position, [event])


def chances(one: Learner, candidates: Candidates) -> np.ndarray:
    return one.policy.propensities(one.active, np.zeros((1, 0)), candidates)[0]


# -- one arm ---------------------------------------------------------------------------------------


def test_three_arms_by_hand() -> None:
    """gamma 10 sqrt(16) = 40; gaps 0, 0.1 and 0.5: 1 / (3 + 4) = 1/7, 1 / (3 + 20) = 1/23, and the
    best has 1 - 1/7 - 1/23 = 131/161."""
    found = inverse_gap(np.array([[0.6, 0.5, 0.1]]), ONE, 40.0)
    assert found[0].tolist() == pytest.approx([131 / 161, 1 / 7, 1 / 23], rel=1e-12)


def test_a_policys_chances_are_by_its_own_means_and_settlements() -> None:
    """Clicks of 8 of 10, 5 of 10 and none of 5 visits: n = 25, so gamma 50."""
    one = learner()
    learn(one, {0: [1.0] * 8 + [0.0] * 2, 1: [1.0, 0.0] * 5, 2: [0.0] * 5})
    candidates = catalogue(0, 1, 2)
    means = one.active.expected(one.active.phi(candidates.x), candidates.ids)
    assert means.argmax() == 0
    others = 1 / (3 + 50 * (means[0] - means[1:]))
    expected = [1 - others.sum(), *others]
    assert chances(one, candidates).tolist() == pytest.approx(expected, rel=1e-9)


def test_a_policy_that_knows_nothing_shows_every_arm_alike() -> None:
    assert chances(learner(), catalogue(0, 1, 2, 0)).tolist() == pytest.approx([0.25] * 4)


def test_arms_that_tie_for_the_best_share_what_the_others_leave() -> None:
    found = inverse_gap(np.array([[0.5, 0.5, 0.0]]), ONE, 14.0)
    assert found[0].tolist() == pytest.approx([0.45, 0.45, 0.1])


def test_arms_of_one_kind_share_what_one_arm_would_have() -> None:
    """One dog and nine cats: by kinds K = 2, and the cats' 1 / (2 + gamma gap) is shared by nine.
    A tenth of an arm each is what they have while the kinds tie."""
    alone = inverse_gap(np.array([[0.6, 0.1]]), np.array([1, 1]), 20.0)[0]
    shared = inverse_gap(np.array([[0.6, 0.1]]), np.array([1, 9]), 20.0)[0]
    assert alone.tolist() == pytest.approx([11 / 12, 1 / 12])
    assert shared[1] == pytest.approx(1 / (10 + 20 * 5 * 0.5))
    assert shared @ [1, 9] == pytest.approx(1.0)
    tied = inverse_gap(np.array([[0.6, 0.6]]), np.array([1, 9]), 20.0)[0]
    near = inverse_gap(np.array([[0.6, 0.6 - 1e-9]]), np.array([1, 9]), 20.0)[0]
    assert tied.tolist() == pytest.approx([0.1, 0.1])
    assert near == pytest.approx(tied, abs=1e-6)


@pytest.mark.parametrize("more", [{}, {"disjoint": True}, {"regressor": "popularity"}])
def test_every_arm_has_a_chance_after_any_number_of_rewards(more: dict[str, Any]) -> None:
    """After 400 rewards the worst of three arms still has 1 / (3 + 10 sqrt(400) gap) or more."""
    one = learner(**more)
    learn(one, {0: [1.0] * 200, 1: [0.0] * 100, 2: [0.0] * 100})
    found = chances(one, catalogue(0, 1, 2))
    assert found.min() >= 1 / 203 - 1e-12
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert found[0] > 0.98


@pytest.mark.parametrize("more", [{}, {"disjoint": True}])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1000.0), (-3.0, -2.0), (1e6, 1e6 + 1)])
def test_neither_level_nor_unit_of_rewards_changes_a_chance(
    low: float, high: float, more: dict[str, Any]
) -> None:
    rng, found = np.random.default_rng(1), []
    rewards = {kind: rng.random(20) * (0.4 + 0.3 * kind) for kind in range(3)}
    for least, most in ((0.0, 1.0), (low, high)):
        one = learner(least, most, **more)
        span = most - least
        learn(one, {kind: (least + span * own).tolist() for kind, own in rewards.items()})
        found.append(chances(one, catalogue(0, 1, 2)))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[0].max() < 1


def test_a_larger_gap_scale_explores_less_and_keeps_the_head() -> None:
    rewards = {0: [1.0] * 8, 1: [0.0] * 4, 2: [0.0] * 4}
    shares = []
    for scale in (1.0, 10.0, 100.0):
        one = learner(gap_scale=scale)
        learn(one, rewards)
        shares.append(float(chances(one, catalogue(0, 1, 2))[0]))
    assert shares[0] < 0.75 < shares[1] < 0.97 < shares[2]
    assert "gap_scale" in one.settings.keeps_head


@pytest.mark.parametrize("more", [{}, {"disjoint": True}, {"regressor": "popularity"}])
def test_a_head_that_forgets_explores_more(more: dict[str, Any]) -> None:
    """Held are the settlements that decays leave."""
    found = []
    for gamma in (1.0, 0.9):
        one = learner(gamma=gamma, decay_every=1, **more)
        learn(one, {0: [1.0] * 100, 1: [0.0] * 100})
        assert one.active.head is not None
        held = one.active.head.held
        assert held == pytest.approx(one.active.head.health().effective_count)
        found.append(held)
    assert found[0] == 200
    assert found[1] == pytest.approx(9.0, abs=0.1)  # 0.9 / (1 - 0.9)


def test_its_log_needs_no_floor() -> None:
    content = {
        "features": {"arm": {"kind": {"type": "categorical", "values": KINDS}}},
        "arms": {name: {"kind": name} for name in KINDS},
        "policies": {"p": {"kind": "squarecb"}, "q": {"kind": "greedy"}},
    }
    warned = [keys for keys, _ in lint(Definition.model_validate(content))]
    assert ("policies", "q", "epsilon") in warned
    assert ("policies", "p", "epsilon") not in warned


def test_an_explanation_tells_the_means_from_which_the_chances_follow() -> None:
    """Nothing is drawn, and nothing is added to a mean."""
    one = learner()
    learn(one, {0: [1.0] * 8, 1: [0.0] * 4, 2: [0.5] * 4})
    candidates = catalogue(0, 1, 2, 1)
    told = attributions(Decider.serving(one), np.zeros(0), candidates)
    means = np.array([[row.mean for row in told]])
    gamma = 10 * np.sqrt(16)
    expected = inverse_gap(means[:, :3], np.array([1, 2, 1]), gamma)[0][[0, 1, 2, 1]]
    assert chances(one, candidates) == pytest.approx(expected, rel=1e-9)
    assert {(row.bonus, row.draw_share) for row in told} == {(None, None)}


def test_an_audit_allows_the_last_bits_of_a_chance_and_no_more() -> None:
    one = learner()
    learn(one, {0: [1.0] * 8, 1: [0.0] * 4})
    scores = Decider.serving(one).score(np.zeros(0), catalogue(0, 1, 2))
    assert rounded(scores, SAME_CHANCE / 2)
    assert not rounded(scores, SAME_CHANCE * 2)


# -- slates ----------------------------------------------------------------------------------------

MEANS = np.array([0.9, 0.4, 0.4, 0.4, 0.1, 0.1])
GAMMA = 5.0
TIED = Scores(
    MEANS[None],
    np.arange(6),
    np.ones(6, np.intp),
    lambda means, like: inverse_gap(means[None], like, GAMMA)[0],
)


def of_slate(arms: tuple[int, ...], epsilon: float) -> list[float]:
    """The chance of each slot: by inverse-gap weighting of the arms that are left."""
    left, chances = list(range(6)), list[float]()
    for arm in arms:
        p = inverse_gap(MEANS[None, left], np.ones(len(left), np.intp), GAMMA)[0]
        chances.append((1 - epsilon) * p[left.index(arm)] + epsilon / len(left))
        left.remove(arm)
    return chances


def seeds(count: int) -> list[int]:
    rng = Random(count)
    return [rng.getrandbits(63) for _ in range(count)]


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("size", [2, 3, 6])
def test_every_slot_weighs_the_gaps_of_the_arms_that_are_left(size: int, epsilon: float) -> None:
    for seed in seeds(100):
        _, slate = draw(TIED, size, bounds(epsilon=epsilon), seed)
        chances = of_slate(tuple(slate.arms), epsilon)
        assert slate.propensities == pytest.approx(chances, rel=1e-9)
        assert exp(slate.log_chance) == pytest.approx(prod(chances), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_slates_are_drawn_as_often_as_is_logged(epsilon: float) -> None:
    counts = Counter(
        tuple(draw(TIED, 2, bounds(epsilon=epsilon), seed)[1].arms) for seed in seeds(6_000)
    )
    expected = {slate: prod(of_slate(slate, epsilon)) for slate in permutations(range(6), 2)}
    assert sum(expected.values()) == pytest.approx(1.0)
    observed, wanted = zip(*((counts[one], 6_000 * p) for one, p in expected.items()), strict=True)
    assert min(wanted) >= 5
    assert chisquare(observed, wanted).pvalue > 0.001


def test_the_first_slot_of_a_slate_has_the_chance_of_a_single_arm() -> None:
    one = learner(epsilon=0.1)
    learn(one, {0: [1.0] * 8, 1: [0.0] * 4, 2: [0.5] * 4})
    candidates = catalogue(0, 1, 2, 1)
    alone, _ = decide(Decider.serving(one), np.zeros(0), candidates, 1, 5)
    for seed in range(50):
        p, slate = decide(Decider.serving(one), np.zeros(0), candidates, 3, seed)
        np.testing.assert_array_equal(p, alone)
        assert slate.propensities[0] == p[slate.arms[0]]
