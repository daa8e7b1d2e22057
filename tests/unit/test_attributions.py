"""Why a policy would choose: what adds up to a score, and which features moved the mean."""

from typing import Any

import numpy as np
import pytest

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.features.schema import Array
from service.serving.attributions import (
    MOST_CANDIDATES,
    MOST_FEATURES,
    CandidateAnswer,
    attributions,
    unexplained,
)
from tests.unit.folding import POLICIES, Log, shop

CAT = {"pet": "cat", "age": 5.0}


def learned(**policies: dict[str, Any]) -> Log:
    log = Log()
    log.define(shop(**policies))
    for policy in policies:
        for arm, reward in {"food1": 1.0, "toy1": 0.0, "bed1": 0.5, "food2": 1.0}.items():
            log.settle(policy, {arm: reward}, {"pet": "cat", "age": 2.0})
    return log


def of(log: Log, policy: str) -> list[CandidateAnswer]:
    return attributions(log.state.learners[policy], context(log), log.state.candidates)


def context(log: Log) -> Array:
    return log.state.schema.encode_context(CAT)


@pytest.mark.parametrize("policy", ["linucb", "lints_disjoint"])
def test_of_a_linear_head_the_contributions_add_up_to_the_mean(policy: str) -> None:
    """They lie above the level of all rewards."""
    log = learned(**{policy: POLICIES[policy]})
    rewards = [one.reward for shown in log.settled for one in shown.event.settled]
    for row in of(log, policy):
        parts = [each.contribution for each in row.moved]
        assert np.mean(rewards) + sum(parts) == pytest.approx(row.mean, abs=1e-12)
        assert parts == sorted(parts, key=abs, reverse=True)


def test_features_are_named_by_their_values() -> None:
    [food, *_] = of(learned(linucb=POLICIES["linucb"]), "linucb")
    names = {each.feature for each in food.moved}
    assert names == {"intercept", "pet=cat", "age", "kind=food", "pet=cat x kind=food"}


def test_an_optimistic_rule_is_told_by_its_bonus() -> None:
    log = learned(linucb={"kind": "linucb", "alpha": 2.0})
    for row in of(log, "linucb"):
        assert row.bonus == pytest.approx(2.0 * row.width)
        assert row.draw_share is None


def test_posterior_draws_are_told_by_the_share_that_an_arm_wins() -> None:
    log = learned(lints={"kind": "lints", "draws": 64, "epsilon": 0.1})
    rows = of(log, "lints")
    scores = log.state.learners["lints"].score(context(log), log.state.candidates)
    assert [row.draw_share for row in rows] == rules.probabilities(scores).tolist()
    assert sum(row.draw_share for row in rows) == pytest.approx(1)
    assert rows[0].bonus is None


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_kind_of_policy_is_told(policy: str) -> None:
    log = learned(**{policy: POLICIES[policy]})
    rows = of(log, policy)
    assert len(rows) == len(log.state.arms)
    if policy == "random":
        assert rows == unexplained(log.state.candidates.ids)
        return
    for row in rows:
        assert np.isfinite(row.mean)
        assert len(row.moved) <= MOST_FEATURES


def test_of_many_candidates_the_likeliest_are_told_what_moved_them() -> None:
    log = learned(linucb=POLICIES["linucb"])
    x = np.eye(3)[np.arange(60) % 3]
    many = Candidates(tuple(map(str, range(60))), x)
    learner = log.state.learners["linucb"]
    rows = attributions(learner, context(log), many)
    told = [index for index, row in enumerate(rows) if row.moved is not None]
    assert len(told) == MOST_CANDIDATES
    left = next(index for index in range(60) if index not in told)
    assert attributions(learner, context(log), many, [str(left)])[left].moved
    best = max(row.mean + row.bonus for row in rows)
    assert rows[told[0]].mean + rows[told[0]].bonus == pytest.approx(best)


def test_the_members_of_auto_are_told_with_their_weights() -> None:
    for row in of(learned(auto={"kind": "auto"}), "auto"):
        members = row.members
        assert {each.member for each in members} <= {
            *["hybrid", "shared", "shared, fading by 0.998", "own"]
        }
        assert sum(each.weight for each in members) == pytest.approx(1.0)
        weighed = sum(each.weight * each.mean for each in members)
        assert weighed == pytest.approx(row.mean)
