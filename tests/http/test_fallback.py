"""Where a policy cannot decide the fallback does: no request fails, and the log stays true."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.history import read_history
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.selected import selected
from service.analysis.targets import ExtraPolicies
from service.analysis.walk import Walk
from service.decide.fallbacks import WARNING_EVERY_S
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from service.state.decisions import Decision, decode_decision
from service.state.fold import State
from tests.support.broken import break_head
from tests.support.service import SECRET, Json, Wire, expect_problem, serving

SHARES = {"linucb": 1.0, "lints": 1.0, "random": 1.0}
POLICIES = {name: {"kind": name, "share": share} for name, share in SHARES.items()}
RULES = {
    "fresh": {"floor": {"arm": "mouse", "share": 0.2}},
    "ad": {"pin": {"arm": "ball", "share": 0.3, "if": "member"}},
    "few": {"cap": {"arm": "kibble", "count": 30, "every": "1m"}},
    "if_empty": "ball",
}
ROPE = {"id": "rope", "features": {"category": "toy"}}
LIKED = {"cat": "food", "dog": "toy"}
KINDS = {"kibble": "food", "mouse": "toy", "ball": "toy", "rope": "toy"}


@pytest.fixture
def broken(store: MemoryStore) -> Iterator[Wire]:
    """A shop whose `linucb` is no number; it shares the traffic with others."""
    with serving(store) as wire:
        wire.redefine(policies=POLICIES)
        break_head(state_of(wire).learners["linucb"])
        yield wire


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def state_of(wire: Wire) -> State:
    state = wire.services.log.replicas.state("shop")
    assert state is not None
    return state


def row_of(wire: Wire, answer: Json) -> Decision:
    row = wire.run(wire.services.store.decision("shop", answer["id"]))
    assert row is not None
    return decode_decision(row)


def chance(context: Json, arm: str) -> float:
    """Of a reward of 1."""
    return 0.7 if KINDS[arm] == LIKED[context["persona"]] else 0.1


def question(rng: Random, number: int) -> Json:
    """One arm or a ranking, of the catalogue, of named arms or of one outside it; with a unit or
    without."""
    asked: Json = {"context": {"persona": rng.choice(["cat", "dog"]), "member": rng.random() < 0.3}}
    asked["arms"] = [None, ["kibble", "mouse"], [ROPE, "ball", "kibble"]][rng.randrange(3)]
    asked["top_k"] = rng.choice([1, 1, 2])
    if rng.random() < 0.2:
        asked["unit"] = f"unit {number}"
    if rng.random() < 0.1:
        asked["policy"] = "linucb"
    if rng.random() < 0.1:
        asked["exclude"] = ["mouse"]
    return asked


def play(wire: Wire, count: int, seed: int) -> None:
    """Selects, each alone or in a batch of ten, and their rewards."""
    rng, number = Random(seed), 0
    while number < count:
        asked = [question(rng, number + place) for place in range(rng.choice([1, 1, 10]))]
        if len(asked) == 1:
            answers = [wire.select(**asked[0])]
        else:
            found = wire.post("/select/batch", {"requests": asked}).json()["results"]
            assert {each["status"] for each in found} == {200}
            answers = [each["answer"] for each in found]
        number += len(asked)
        for one, answer in zip(asked, answers, strict=True):
            shown = [each["arm"] for each in answer["ranking"]]
            rewards = {arm: float(rng.random() < chance(one["context"], arm)) for arm in shown}
            wire.reward(answer, rewards=rewards)
        wire.clock.skip(1.0)


def truths(store: MemoryStore, wire: Wire, policies: list[str]) -> dict[str, float]:
    """What policies would have earned in the places of the log, by the chances that gave its
    rewards."""

    async def walked() -> dict[str, float]:
        chosen = selected(await read_history(store, "shop"), Selection())
        values: dict[str, list[float]] = {name: [] for name in policies}
        async for each in Walk(store, "shop", policies, ExtraPolicies({})).decisions(chosen):
            q = [chance(each.decision.context, arm) for arm in each.arms]
            for name in policies:
                values[name].append(float(each.targets[name] @ q))
        return {name: float(np.mean(found)) for name, found in values.items()}

    return wire.run(walked())


def prove(store: MemoryStore, selects: int, seed: int) -> None:
    """Heads break after a part of a mixed set of selects, one and then the other; each is sound
    again once the numbers that it sees are measured, and breaks again. No answer is a 5xx, the log
    is audited without a difference, and estimates hold the truth."""
    with serving(store, token_keys=[SECRET]) as wire:
        wire.redefine(policies=POLICIES, rules=RULES)
        for part, broken in enumerate([[], ["linucb"], ["lints"], ["linucb", "lints"], []]):
            for name in broken:
                break_head(state_of(wire).learners[name])
            play(wire, selects // 5, seed + part)
        audit = wire.run(Audit(store, "shop").run())
        assert audit.decisions >= selects
        assert audit.clean, audit
        request = EvaluationRequest("shop", first_slot=True, confidence=0.999)
        result = wire.run(evaluate(store, request))
        truth = truths(store, wire, list(POLICIES))
        fell = [one for one in rows(wire, store) if one.facts.fallback]
        assert audit.fallback == Counter((one.policy, one.facts.fallback) for one in fell)
        kinds = Counter((one.policy, one.model_version.partition("/")[0]) for one in fell)
        assert kinds.keys() == {("linucb", "fallback"), ("lints", "fallback")}
        print(f"{audit.decisions} decisions, {len(fell)} of the fallback")  # noqa: T201
        for value in result.policies:
            for name, each in value.estimates.items():
                low, high = each.interval
                print(  # noqa: T201
                    f"{value.policy} {name}: {each.value:.4f} +- {each.standard_error:.4f}, truth "
                    f"{truth[value.policy]:.4f}"
                )
                assert low <= truth[value.policy] <= high


def rows(wire: Wire, store: MemoryStore) -> list[Decision]:
    kept = wire.run(store.decisions("shop", 0, 1_000_000))
    return [decode_decision(row.payload) for row in kept]


# -- one decision ----------------------------------------------------------------------------------


def test_a_row_names_the_assigned_policy_and_the_head_that_decided(broken: Wire) -> None:
    answer = broken.select(policy="linucb", top_k=2)
    decision, state = row_of(broken, answer), state_of(broken)
    assert (decision.policy, decision.assignment) == ("linucb", 1.0)
    assert answer["model_version"] == decision.model_version == f"fallback/0@{state.position}"
    assert decision.facts.fallback == "scores"
    assert decision.bank == state.fallback.policy.bank_seed
    told = broken.explain(answer)
    assert (told["policy"], told["fallback"], told["choice_follows"]) == ("linucb", "scores", True)
    assert {each["mean"] for each in told["candidates"]} == {0.5}  # of clicks, before the first
    assert broken.explain(broken.select(policy="random"))["fallback"] == ""


def test_the_fallback_tries_the_arms_that_it_has_not_tried_itself(store: MemoryStore) -> None:
    """It has learned of each arm by the rewards of others, and the assigned policy of none."""
    with serving(store) as wire:
        wire.redefine(policies=POLICIES)
        for arm in KINDS.keys() - {"rope"}:
            for _ in range(3):
                wire.reward(wire.select(policy="random", arms=[arm]), 1.0)
        lints = state_of(wire).learners["lints"]
        assert lints.tries == {}
        break_head(lints)
        facts = row_of(wire, wire.select(policy="lints")).facts
        assert (facts.fallback, facts.untried) == ("scores", ())
        audit = wire.run(Audit(store, "shop").run())
        assert audit.clean, audit


def test_rewards_settle_for_the_assigned_policy(broken: Wire) -> None:
    answer = broken.select(policy="linucb")
    assert broken.reward(answer, 1.0) == "accepted"
    state = state_of(broken)
    assert (state.reward_sums["linucb"].count, state.reward_sums["linucb"].total) == (1, 1.0)
    assert state.fallback.learner.rewards == 1
    [one] = [each for each in broken.explain(answer)["candidates"] if each["arm"] == answer["arm"]]
    assert one["mean"] == pytest.approx(2 / 3)


def test_a_policy_that_is_sound_decides_beside_a_broken_one(broken: Wire) -> None:
    versions = {broken.select()["model_version"].partition("/")[0] for _ in range(60)}
    assert versions == {"fallback", "lints", "random"}


def test_one_request_of_a_batch_that_cannot_be_scored_leaves_the_others_alone(
    broken: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context of one request alone makes scores overflow."""
    learner = state_of(broken).learners["lints"]
    policy = type(learner.policy)
    sound = policy.propensities

    def overflow(self: Any, version: Any, contexts: Any, candidates: Any) -> Any:
        p = sound(self, version, contexts, candidates)
        if self is learner.policy:
            p[contexts[:, 0] > 5.0] = np.nan  # age
        return p

    monkeypatch.setattr(policy, "propensities", overflow)
    ages = [1.0, 100.0, 2.0]
    asked = [{"context": {"persona": "cat", "age": age}, "policy": "lints"} for age in ages]
    found = broken.post("/select/batch", {"requests": asked}).json()["results"]
    versions = [each["answer"]["model_version"].partition("/")[0] for each in found]
    assert versions == ["lints", "fallback", "lints"]


def test_a_repeat_is_answered_with_the_decision_of_the_fallback(broken: Wire) -> None:
    asked = {"context": {"persona": "dog"}, "policy": "linucb"}
    answers = [
        broken.post("/select", asked, headers={"Idempotency-Key": "k"}).json() for _ in range(2)
    ]
    assert answers[0]["id"] == answers[1]["id"]
    assert answers[1]["model_version"].startswith("fallback/")


def test_a_shortlist_of_a_broken_head_is_drawn_by_chance(broken: Wire, store: MemoryStore) -> None:
    arms = {f"arm{number}": {"category": "toy", "brand": f"b{number}"} for number in range(60)}
    broken.redefine(policies={"ts": {"kind": "lints", "retrieve": 4}}, arms=arms)
    break_head(state_of(broken).learners["ts"])
    decisions = [row_of(broken, broken.select(top_k=1 + number % 2)) for number in range(10)]
    assert {one.facts.fallback for one in decisions} == {"scores"}
    assert {len(one.arms) for one in decisions} == {2}
    assert len({arm for one in decisions for arm in one.arms}) > 10
    assert broken.run(Audit(store, "shop").run()).clean


# -- which fallback --------------------------------------------------------------------------------


def test_a_named_policy_is_the_fallback_and_503_where_it_is_broken_too(
    broken: Wire, store: MemoryStore
) -> None:
    broken.redefine(fallback="lints")
    answer = broken.select(policy="linucb")
    assert answer["model_version"].startswith("lints/0@")
    assert row_of(broken, answer).policy == "linucb"
    assert broken.run(Audit(store, "shop").run()).clean
    break_head(state_of(broken).learners["lints"])
    for policy in ("linucb", "lints"):
        asked = {"context": {"persona": "cat"}, "policy": policy}
        problem = expect_problem(broken.post("/select", asked), 503)
        assert problem["type"].endswith("/no-finite-scores")
        assert "policy lints" in problem["detail"]


def test_where_rewards_are_no_clicks_the_fallback_is_chance(broken: Wire) -> None:
    broken.redefine(reward={"range": [0, 5]})
    break_head(state_of(broken).learners["linucb"])
    decision = row_of(broken, broken.select(policy="linucb"))
    assert decision.facts.fallback == "scores"
    assert decision.probabilities == pytest.approx([1 / 3] * 3)


# -- who hears of it -------------------------------------------------------------------------------


def test_a_warning_a_minute_and_a_word_when_the_policy_decides_again(
    broken: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        broken.select(policy="linucb")
    broken.clock.skip(WARNING_EVERY_S)
    broken.select(policy="linucb")
    broken.post("/experiments/shop/policies/linucb/reset")
    for _ in range(2):
        broken.select(policy="linucb")
    said = [record.message for record in caplog.records if "fallbacks" in record.name]
    assert [line.partition(" (")[0] for line in said] == [
        "experiment shop: the fallback decides for policy 'linucb'",
        "experiment shop: the fallback decides for policy 'linucb'",
        "experiment shop: policy 'linucb' decides again",
    ]


def test_metrics_count_the_decisions_and_leave_out_the_health_of_the_head(broken: Wire) -> None:
    for _ in range(3):
        broken.select(policy="linucb")
    found = broken.metrics()
    labels = '{experiment="shop",policy="linucb",reason="scores"}'
    assert found["forage_fallback_decisions_total" + labels] == 3
    assert found['forage_decisions_total{experiment="shop",policy="linucb"}'] == 3
    assert 'forage_head_condition_number{experiment="shop",policy="linucb"}' not in found
    assert 'forage_head_condition_number{experiment="shop",policy="lints"}' in found
    assert broken.policy("linucb")["head"] is None


def test_the_fallback_is_no_policy_of_the_experiment(broken: Wire) -> None:
    listed = broken.get("/experiments/shop/policies").json()["policies"]
    assert [one["name"] for one in listed] == list(POLICIES)
    asked = {"context": {"persona": "cat"}, "policy": "fallback"}
    expect_problem(broken.post("/select", asked), 404)
    assert not [name for name in broken.metrics() if 'policy="fallback"' in name]


# -- all together ----------------------------------------------------------------------------------


def test_500_selects_of_a_broken_policy_are_answered_audited_and_evaluated(
    store: MemoryStore,
) -> None:
    prove(store, 500, seed=1)


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
def test_10_000_selects_of_broken_policies_are_answered_audited_and_evaluated(
    store: MemoryStore,
) -> None:
    prove(store, 10_000, seed=7)
