"""`auto`: its bound by hand, its floor, what it sees and refuses, and that it finds the best."""

from random import Random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from service.bandits.heads.averaged import AveragedHead
from service.bandits.kinds.auto import AUTO_OPTIMISM, FLOOR, NARROW, Auto
from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.state.decider import Decider
from tests.support.tables import by_arm
from tests.unit.folding import Log, opened, shop

CAT = np.array([1.0, 0.0, 0.0])


def head_of(log: Log) -> AveragedHead:
    head = log.state.learners["p"].active.head
    assert isinstance(head, AveragedHead)
    return head


def filled(count: int, **more: Any) -> Log:
    log, rng = opened({"kind": "auto", **more}), Random(2)
    arms = sorted(log.state.arms)
    for _ in range(count):
        log.settle("p", {rng.choice(arms): float(rng.random() < 0.5)})
    return log


def test_the_score_is_the_mean_within_the_range_and_an_anytime_width() -> None:
    log = filled(40)
    learner = log.state.learners["p"]
    scores = Decider.serving(learner).score(CAT, log.state.candidates)
    phi = learner.active.view.design(CAT[None], log.state.candidates.x)
    mean, width, grown = head_of(log).spread(phi, log.state.candidates.ids)
    optimism = 1 + 1 / (1 + 3)  # pet is cat, pet is dog, age
    bound = np.clip(mean, 0, 1) + width * np.sqrt(AUTO_OPTIMISM + optimism * np.log1p(grown))
    np.testing.assert_allclose(by_arm(scores), bound, rtol=1e-12)
    assert (mean > 1).any() or (np.clip(mean, 0, 1) == mean).all()


def test_the_floor_is_part_of_the_logged_probabilities_and_falls() -> None:
    """0.005 up to settlement 1,000, then as the root; the floor of the settings is added."""
    log = filled(10)
    learner = log.state.learners["p"]
    assert Decider.serving(learner).epsilon == FLOOR
    p, _ = decide(Decider.serving(learner), CAT, log.state.candidates, 1, seed=1)
    assert p.sum() == pytest.approx(1.0)
    assert p.min() == pytest.approx(FLOOR / len(log.state.arms))
    assert learner.active.settled == head_of(log).settled == 10
    learner.active.settled = 3_999
    assert Decider.serving(learner).epsilon == pytest.approx(FLOOR / 2)
    both = filled(10, epsilon=0.1).state.learners["p"]
    assert Decider.serving(both).epsilon == pytest.approx(1 - (1 - FLOOR) * 0.9)


def test_a_slate_takes_the_best_bounds_with_the_floor_in_its_chance() -> None:
    log = filled(60)
    learner = log.state.learners["p"]
    p, slate = decide(Decider.serving(learner), CAT, log.state.candidates, 3, seed=2**62)
    best = np.argsort(-by_arm(Decider.serving(learner).score(CAT, log.state.candidates))[0])[:3]
    assert slate.arms == best.tolist()
    assert slate.propensities[0] == pytest.approx(p[slate.arms[0]])
    told = [1 - FLOOR + FLOOR / left for left in (6, 5, 4)]
    assert slate.propensities == pytest.approx(told)
    assert np.exp(slate.log_chance) == pytest.approx(np.prod(told))


@pytest.mark.parametrize("way", [{"gamma": 0.99}, {"window": 100}, {"change": True}])
def test_it_forgets_by_itself(way: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="auto weighs regressions that forget"):
        Auto(kind="auto", **way)


def seen(arms: dict[str, Any], **features: Any) -> list[str]:
    definition = Definition.model_validate(
        {
            "features": features,
            "arms": arms,
            "policies": {"p": {"kind": "auto"}},
        }
    )
    return definition.features_of(definition.policies["p"])


def test_it_sees_all_features_but_one_that_repeats_the_arms_id() -> None:
    """And crosses within a side; those of context and arm are its own."""
    assert opened({"kind": "auto"}).state.learners["p"].view.names == (
        "intercept",
        "age",
        "kind",
        "pet",
    )
    name = {"type": "categorical", "values": ["a", "b"]}
    flag = {"type": "boolean"}
    told = {"context": {"x": flag, "y": flag}, "arm": {"name": name}, "crosses": ["x x y"]}
    assert seen({"a": {"name": "a"}, "b": {"name": "b"}}, **told) == [
        "intercept",
        "x",
        "y",
        "x x y",
    ]
    assert "name" in seen({"a": {"name": "b"}, "b": {"name": "b"}}, **told)
    assert "name" in seen({}, **told)


CONTEXT = {"age": {"type": "numeric"}}
PRICE = {"price": {"type": "numeric"}}


@pytest.mark.parametrize(
    ("features", "settings", "tries"),
    [
        ({"context": CONTEXT}, {}, 0),
        ({"context": CONTEXT}, {"min_tries": 3}, 3),
        ({"context": CONTEXT, "arm": PRICE}, {}, 3),
        ({"context": CONTEXT, "arm": PRICE}, {"features": ["intercept", "age"]}, 0),
        ({"arm": PRICE}, {}, 3),
        ({}, {}, 3),
    ],
)
def test_arms_are_tried_for_their_own_sake_but_where_context_alone_tells_them_apart(
    features: dict[str, Any], settings: dict[str, Any], tries: int
) -> None:
    arms = {"a": {"price": 1.0}, "b": {"price": 2.0}} if "arm" in features else {"a": {}, "b": {}}
    content = {"features": features, "arms": arms, "policies": {"p": {"kind": "auto"} | settings}}
    policy = Definition.model_validate(content).completed().policies["p"]
    assert isinstance(policy, Auto)
    assert policy.min_tries == tries


def test_the_width_is_narrower_where_context_alone_tells_arms_apart() -> None:
    """By hand, as `test_the_score_is_the_mean_within_the_range_and_an_anytime_width`."""
    log = Log()
    log.define(
        {
            "features": {"context": CONTEXT},
            "arms": {"a": {}, "b": {}},
            "policies": {"p": {"kind": "auto"}},
        }
    )
    for number in range(40):
        log.settle("p", {"ab"[number % 2]: float(number % 3 == 0)}, {"age": float(number)})
    learner, x = log.state.learners["p"], np.array([20.0])
    phi = learner.active.view.design(x[None], log.state.candidates.x)
    mean, width, grown = head_of(log).spread(phi, log.state.candidates.ids)
    wide = width * np.sqrt(AUTO_OPTIMISM + 1.5 * np.log1p(grown))  # 1 + 1 / (1 + d) with one column
    scores = Decider.serving(learner).score(x, log.state.candidates)
    np.testing.assert_allclose(by_arm(scores), np.clip(mean, 0, 1) + NARROW * wide, rtol=1e-12)


def test_unknown_members_of_a_request_are_scored_from_the_prior() -> None:
    log = filled(30)
    head, phi = head_of(log), np.ones((1, log.state.learners["p"].view.width))
    [new], [known] = head.width(phi, ["new"]), head.width(phi, [sorted(log.state.arms)[0]])
    assert new > known > 0


@pytest.mark.parametrize("stream", range(5))
def test_it_finds_the_best_of_three_arms(stream: int) -> None:
    """Of the last 300 of 800 visits the best arm gets at least 9 in 10."""
    chances, rng = {"a": 0.3, "b": 0.5, "c": 0.7}, Random(stream)
    log = Log()
    log.define({**shop(p={"kind": "auto"}), "features": {}, "arms": {arm: {} for arm in chances}})
    learner, shown = log.state.learners["p"], []
    for _ in range(800):
        _, slate = decide(
            Decider.serving(learner), np.empty(0), log.state.candidates, 1, rng.getrandbits(63)
        )
        shown.append(log.state.candidates.ids[slate.arms[0]])
        reward = float(rng.random() < chances[shown[-1]])
        log.settle("p", {shown[-1]: reward}, context={})
    assert shown[-300:].count("c") >= 270


def test_arms_outside_the_catalogue_teach_what_arms_share() -> None:
    """Toys of requests earn, and food does not: a toy of a later request has the higher mean, and
    all of them have one row."""
    log, rng = opened({"kind": "auto"}), Random(0)
    for number in range(120):
        kind = rng.choice(["toy", "food"])
        log.settle("p", {f"r{number}": float(kind == "toy")}, inline={"kind": kind})
    head, learner, schema = head_of(log), log.state.learners["p"], log.state.schema
    assert head.count == 1
    assert learner.tries == {}
    rows = np.array([schema.encode_arm({"kind": kind}) for kind in ("toy", "food")])
    toy, food = head.mean(learner.view.design(CAT[None], rows), ["new", "other"])
    assert toy > 0.7
    assert food < 0.3
    shown = log.settle("p", {"late": 0.0}, inline={"kind": "toy"})
    before = head.rewards.array()
    log.correct(shown, 1.0)
    assert head.rewards.array() == pytest.approx(before + np.array([0.0, 1.0, 1.0]))


def test_without_features_of_arms_such_arms_teach_nothing() -> None:
    log = Log()
    log.define({**shop(p={"kind": "auto"}), "features": {}, "arms": {"a": {}}})
    log.settle("p", {"b": 1.0}, context={}, inline={})
    assert head_of(log).settled == 0
