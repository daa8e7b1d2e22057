"""Arms with few settlements are tried for their own sake, as a part of the distribution."""

from collections import Counter
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

from service.bandits.candidates import Candidates
from service.bandits.rules import with_tries
from service.decide.scoring import decide, decide_batch
from service.decide.tries import Tries
from service.state.decider import Decider
from service.state.decisions import NO_FACTS, DecisionFacts
from service.state.fold import State
from service.state.learner import Learner
from tests.unit.folding import Log, opened, replay, shop

NONE = np.empty(0)


def arms(policy: dict[str, Any], *names: str) -> Log:
    """A log of arms without features, in a world without context."""
    log = Log()
    log.define({**shop(p=policy), "features": {}, "arms": {name: {} for name in names}})
    return log


def settle(log: Log, arm: str, reward: float, times: int = 1) -> None:
    for _ in range(times):
        log.settle("p", {arm: reward}, context={})


def half_tried(policy: dict[str, Any]) -> tuple[Learner, Candidates, DecisionFacts]:
    """Four arms, of which the last two are untried and look bad."""
    log = arms(policy, *"abcd")
    settle(log, "a", 1.0, times=3)
    settle(log, "b", 0.9, times=3)
    settle(log, "c", 0.0)
    settle(log, "d", 0.0)
    learner, candidates = log.state.learners["p"], log.state.candidates
    facts = Decider.serving(learner).facts(candidates)
    assert facts.untried == (2, 3)
    return learner, candidates, facts


def test_untried_arms_share_a_tenth_of_the_chance() -> None:
    p = np.array([0.7, 0.3, 0.0, 0.0])
    assert with_tries(p, [2, 3]) == pytest.approx([0.63, 0.27, 0.05, 0.05])
    assert with_tries(p, [1]) == pytest.approx([0.63, 0.37, 0.0, 0.0])
    assert with_tries(p, []) is p
    assert with_tries(p, [0, 1, 2, 3]) is p
    assert with_tries(np.array([p, p]), [2])[1] == pytest.approx([0.63, 0.27, 0.1, 0.0])


def test_untried_arms_share_a_tenth_of_every_slot() -> None:
    """Of a slate, too: among the arms that are left, as long as some of these are not untried."""
    learner, candidates, facts = half_tried({"kind": "linucb", "alpha": 1e-9, "disjoint": True})
    found = Counter[tuple[int, ...]]()
    rng = Random(1)
    for _ in range(2_000):
        _, slate = decide(Decider.serving(learner), NONE, candidates, 2, rng.getrandbits(63), facts)
        found[tuple(slate.arms)] += 1
        for arm, p in zip(slate.arms, slate.propensities, strict=True):
            if arm in facts.untried and not set(facts.untried) & set(slate.arms) - {arm}:
                assert p == pytest.approx(0.05)
    assert found[2, 3] + found[3, 2] == pytest.approx(2_000 * 0.1 * 0.1, abs=15)


def test_an_arm_is_untried_until_it_has_three_settlements_of_the_policy() -> None:
    log = arms({"kind": "linucb", "disjoint": True}, "a", "b", "c")
    learner, candidates = log.state.learners["p"], log.state.candidates
    assert Decider.serving(learner).facts(candidates).untried == (0, 1, 2)
    settle(log, "a", 1.0, times=2)
    shown = log.settle("p", {"a": 0.0}, context={})
    assert Decider.serving(learner).facts(candidates).untried == (1, 2)
    log.correct(shown, 1.0)
    assert learner.tries == {"a": 3}
    assert Decider.serving(learner).facts(candidates, shown={"b": 3}).untried == (2,)
    assert Decider.serving(learner).facts(candidates, outside={"c"}).untried == (1,)
    assert replay(log.records).learners["p"].tries == {"a": 3}
    restored = State.restore(log.state.snapshot())
    assert restored.learners["p"].tries == {"a": 3}


@pytest.mark.parametrize("kind", ["auto", "linucb"])
def test_no_arm_is_tried_for_its_own_sake_before_one_was_shown_three_times(kind: str) -> None:
    """Six new arms: after a miss an arm has the policy's own chance, of `auto` its floor of .005
    among six. Once another arm was shown three times the five others share a tenth."""
    policy = {"kind": kind, **({"disjoint": True} if kind == "linucb" else {})}
    log, tries = arms(policy, *"abcdef"), Tries()
    learner, candidates = log.state.learners["p"], log.state.candidates

    def chance_of_a() -> float:
        facts = tries.facts(Decider.serving(learner), candidates, ())
        return float(decide(Decider.serving(learner), NONE, candidates, 1, 1, facts)[0][0])

    for arm, reward in (("a", 0.0), ("b", 1.0), ("b", 1.0)):
        tries.show(learner, [arm])
        settle(log, arm, reward)
    floor = 0.005 / 6 if kind == "auto" else 0.0
    assert chance_of_a() == pytest.approx(floor, abs=1e-4)
    tries.show(learner, ["b"])
    assert chance_of_a() == pytest.approx(0.9 * floor + 0.1 / 5, abs=1e-4)


def test_arms_that_a_policy_cannot_tell_apart_are_tried_together() -> None:
    """Two arms of each category: three settlements of one of them are enough for both."""
    log = opened({"kind": "linucb"})
    for _ in range(3):
        log.settle("p", {"toy1": 1.0})
    learner, candidates = log.state.learners["p"], log.state.candidates
    untried = {
        candidates.ids[index] for index in Decider.serving(learner).facts(candidates).untried
    }
    assert untried == {"food1", "food2", "bed1", "bed2"}


@pytest.mark.parametrize("settings", [{"min_tries": 0}, {"learning": False}])
def test_who_does_not_try_has_no_untried_arms(settings: dict[str, Any]) -> None:
    log = arms({"kind": "lints", "draws": 16, **settings}, "a", "b")
    assert Decider.serving(log.state.learners["p"]).facts(log.state.candidates) == NO_FACTS
    log.define(shop(p={"kind": "greedy"}))
    assert Decider.serving(log.state.learners["p"]).facts(log.state.candidates) == NO_FACTS


def test_showings_whose_rewards_are_open_count() -> None:
    log, tries = arms({"kind": "linucb", "disjoint": True}, "a", "b"), Tries()
    learner, candidates = log.state.learners["p"], log.state.candidates
    settle(log, "a", 1.0, times=3)
    assert tries.facts(Decider.serving(learner), candidates, ()).untried == (1,)
    for _ in range(2):
        tries.show(learner, ["b"])
        assert tries.facts(Decider.serving(learner), candidates, ()).untried == (1,)
    settle(log, "b", 0.0, times=2)  # of the two that were shown
    assert tries.facts(Decider.serving(learner), candidates, ()).untried == (1,)
    tries.show(learner, ["b"])
    assert tries.facts(Decider.serving(learner), candidates, ()) == NO_FACTS
    assert Tries().facts(Decider.serving(learner), candidates, ()).untried == (1,)


def test_a_batch_has_the_chances_of_each_alone() -> None:
    log = arms({"kind": "linucb", "disjoint": True}, "a", "b", "c")
    settle(log, "a", 1.0, times=3)
    learner, candidates = log.state.learners["p"], log.state.candidates
    batch = decide_batch(
        Decider.serving(learner), [NONE] * 3, candidates, [1, 2, 3], DecisionFacts((1, 2))
    )
    for seed, (p, slate) in enumerate(batch, start=1):
        alone, same = decide(
            Decider.serving(learner), NONE, candidates, 1, seed, DecisionFacts((1, 2))
        )
        assert np.array_equal(p, alone)
        assert slate == same


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("kind", ["linucb", "lints", "popularity", "auto", "epsilon_greedy"])
def test_arms_are_shown_as_often_as_is_logged(kind: str, top_k: int) -> None:
    """Over 2,000 seeds, each count within 4.5 standard deviations of what the chances say. Scores
    do not depend on the seed: they are computed once."""
    own: dict[str, Any] = {} if kind in ("popularity", "auto") else {"disjoint": True}
    if kind in ("lints", "popularity"):
        own["draws"] = 64
    learner, candidates, facts = half_tried({"kind": kind, **own})
    counts: Counter[tuple[int, ...]] = Counter()
    chances: dict[tuple[int, ...], float] = {}
    rng = Random(0)
    seeds = [rng.getrandbits(63) for _ in range(2_000)]
    if top_k == 1:
        decisions = decide_batch(Decider.serving(learner), [NONE] * 2_000, candidates, seeds, facts)
    else:
        scores = Decider.serving(learner).score(NONE, candidates)
        with mock.patch.object(Decider, "score", return_value=scores):
            decisions = [
                decide(Decider.serving(learner), NONE, candidates, 2, seed, facts) for seed in seeds
            ]
    for _, slate in decisions:
        counts[tuple(slate.arms)] += 1
        chances[tuple(slate.arms)] = float(np.exp(slate.log_chance))
    p, _ = decisions[0]
    assert min(p[list(facts.untried)]) >= 0.04
    assert sum(chances.values()) == pytest.approx(1.0, abs=0.01)
    for slate, chance in chances.items():
        spread = np.sqrt(2_000 * chance * (1 - chance))
        assert abs(counts[slate] - 2_000 * chance) <= 4.5 * spread + 1, slate


@pytest.mark.parametrize("kind", ["linucb", "lints", "popularity", "auto"])
def test_a_better_new_arm_is_found(kind: str) -> None:
    """.999 beside .97 after 300 visits: shown within 100 more, and most in the last 100 of 300."""
    policy = {"kind": kind, **({"disjoint": True} if kind in ("linucb", "lints") else {})}
    log, rng, tries = arms(policy, "old"), Random(4), Tries()
    settle(log, "old", 1.0, times=291)
    settle(log, "old", 0.0, times=9)
    log.upsert("new", {})
    learner, shown = log.state.learners["p"], []
    for _ in range(300):
        candidates = log.state.candidates
        facts = tries.facts(Decider.serving(learner), candidates, ())
        _, slate = decide(Decider.serving(learner), NONE, candidates, 1, rng.getrandbits(63), facts)
        arm = candidates.ids[slate.arms[0]]
        tries.show(learner, [arm])
        shown.append(arm)
        settle(log, arm, float(rng.random() < (0.999 if arm == "new" else 0.97)))
    assert "new" in shown[:100]
    assert shown[200:].count("new") > 50


def test_a_setting_that_changes_takes_effect_at_once() -> None:
    policy = {"kind": "linucb", "disjoint": True}
    log, tries = arms(policy, "a", "b"), Tries()
    settle(log, "a", 1.0, times=3)
    learner, candidates = log.state.learners["p"], log.state.candidates
    assert tries.facts(Decider.serving(learner), candidates, ()).untried == (1,)
    settings = type(learner.settings).model_validate({**policy, "min_tries": 0})
    learner.configure(settings, (0.0, 1.0), position=log.state.position)
    assert tries.facts(Decider.serving(learner), candidates, ()) == NO_FACTS
