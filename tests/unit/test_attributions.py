"""Why a policy would choose: what adds up to a score, and which features moved the mean."""

from typing import Any

import numpy as np
import pytest

from service.bandits import rules
from service.bandits.candidates import Candidates
from service.features.schema import Array
from service.observe.attributions import (
    MOST_CANDIDATES,
    MOST_FEATURES,
    CandidateAnswer,
    attributions,
    unexplained,
)
from service.state.decider import Decider
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
    return attributions(
        Decider.serving(log.state.learners[policy]), context(log), log.state.candidates
    )


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
    scores = Decider.serving(log.state.learners["lints"]).score(context(log), log.state.candidates)
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
    rows = attributions(Decider.serving(learner), context(log), many)
    told = [index for index, row in enumerate(rows) if row.moved is not None]
    assert len(told) == MOST_CANDIDATES
    left = next(index for index in range(60) if index not in told)
    assert attributions(Decider.serving(learner), context(log), many, [str(left)])[left].moved
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


TABLE: dict[str, Any] = {"type": "vector", "size": 12, "scale": 1.0}
WORLDS: dict[str, dict[str, Any]] = {
    "features of both sides": {},
    "no features of arms": {"arm": {}, "crosses": []},
    "no features": {"context": {}, "arm": {}, "crosses": []},
    "300 crosses, hashed to 256": {
        "context": {"pet": {**TABLE, "size": 20}},
        "arm": {"kind": {**TABLE, "size": 15}},
        "crosses": [],
    },
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_mean_of_auto_less_what_moved_it_is_one_constant_for_all_arms(world: str) -> None:
    """Leaving a feature out took its crosses with it: what was left differed by .03 to .41."""
    log, rng = Log(), np.random.default_rng(3)
    definition = shop(auto={"kind": "auto"})
    definition["features"] |= WORLDS[world]
    declared = definition["features"]

    def values(side: str) -> dict[str, Any]:
        return {
            name: rng.standard_normal(feature["size"]).tolist()
            if feature["type"] == "vector"
            else feature["values"][rng.integers(len(feature["values"]))]
            if feature["type"] == "categorical"
            else float(rng.normal(0, 10))
            for name, feature in declared[side].items()
        }

    definition["arms"] = {f"arm{number}": values("arm") for number in range(6)}
    log.define(definition)
    for _ in range(300):
        arm = f"arm{rng.integers(6)}"
        log.settle(
            "auto", {arm: float(rng.random() < 0.2 + 0.1 * (arm < "arm3"))}, values("context")
        )
    learner = log.state.learners["auto"]
    seen = log.state.schema.encode_context(values("context"))
    rows = attributions(Decider.serving(learner), seen, log.state.candidates)
    rest = [row.mean - sum(part.contribution for part in row.moved) for row in rows]
    assert rest == pytest.approx([rest[0]] * 6, abs=1e-12)
    assert np.std([row.mean for row in rows]) > 0.01


def test_a_cross_of_auto_is_told_once_under_its_own_name() -> None:
    """Cats click food alone and dogs toys alone. The part of a cross is what is left of the mean
    without the pet alone, the kind alone and both: m(x, w) - m(0, w) - m(x, 0) + m(0, 0)."""
    log = Log()
    definition = shop(auto={"kind": "auto"})
    definition["arms"] = {
        f"{kind}{n}": {"kind": kind} for kind in ("food", "toy") for n in range(9)
    }
    log.define(definition)
    for turn in range(108):
        pet, arm = ("cat", "dog")[turn % 2], [*definition["arms"]][turn % 18]
        click = (pet == "cat") == arm.startswith("food") and turn % 5 > 0
        log.settle("auto", {arm: float(click)}, {"pet": pet, "age": 0.0})
    learner, candidates = log.state.learners["auto"], log.state.candidates
    seen = log.state.schema.encode_context({"pet": "cat", "age": 0.0})
    [food, *_] = attributions(Decider.serving(learner), seen, candidates)
    moved = {part.feature: part.contribution for part in food.moved}
    assert set(moved) == {"intercept", "pet=cat", "kind=food", "pet=cat x kind=food"}
    masks = np.array([(1, 1), (0, 1), (1, 0), (0, 0)])
    rows = np.repeat(learner.view.design(seen[None], candidates.x[:1]), 4, axis=0)
    for name, columns in zip(learner.view.names, learner.view.groups, strict=True):
        rows[:, columns] *= {"kind": masks[:, 1:]}.get(name, masks[:, :1])
    both, kind, pet, none = learner.active.expected(rows, ["food0"] * 4)
    assert moved["pet=cat x kind=food"] == pytest.approx(both - kind - pet + none, abs=1e-12)
    assert moved["pet=cat x kind=food"] > 0.1
    assert moved["pet=cat"] == pytest.approx(pet - none, abs=1e-12)
    assert moved["kind=food"] == pytest.approx(kind - none, abs=1e-12)


def test_parts_beyond_the_largest_are_one_part() -> None:
    """Ten numbers and the intercept: six parts, and one of the five others."""
    log = Log()
    numbers = {f"n{k}": {"type": "numeric", "scale": 1.0} for k in range(10)}
    definition = shop(linucb={"kind": "linucb"})
    definition["features"] = {"context": numbers, "arm": definition["features"]["arm"]}
    log.define(definition)
    context = {name: float(place) for place, name in enumerate(numbers, start=1)}
    for arm, reward in {"food1": 1.0, "toy1": 0.0, "bed1": 0.25}.items():
        log.settle("linucb", {arm: reward}, context)
    learner = log.state.learners["linucb"]
    seen = log.state.schema.encode_context(context)
    for row in attributions(Decider.serving(learner), seen, log.state.candidates):
        assert [part.feature for part in row.moved].index(None) == MOST_FEATURES
        assert sum(part.contribution for part in row.moved) == pytest.approx(
            row.mean - (1.0 + 0.0 + 0.25) / 3, abs=1e-12
        )
