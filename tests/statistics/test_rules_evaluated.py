"""Estimates of another policy under the rules that bound the log: intervals cover its true value.

A policy that learns makes each log under a rule. The other one is uniform but for the rule, so that
its chances, and with them its value, are known by hand. Under a budget they hang on what the log
had shown: they are those of each decision.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

import pytest

from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EstimateAnswer
from service.analysis.rederive import candidates_of, limits_of
from service.analysis.request import EvaluationRequest
from service.decide.scoring import decide
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import Invalid
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.decider import Decider
from service.state.decisions import Decision
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.unit.audited import define, live, state_of
from tests.unit.folding import KINDS, shop

LOGS, DECISIONS = 50, 2_000
COVERED = 44
"""Of 50 intervals of 95 percent, which chance misses once in 85."""
TOGETHER = 50
"""Visitors at a time."""

CLICKS = {"cat": (0.5, 0.2, 0.1), "dog": (0.1, 0.4, 0.3)}
"""Click rates of food, toys and beds; there are two arms of each."""


@dataclass(frozen=True)
class Case:
    """A rule, and the chances of food1, food2, toy1, ... of a policy that is uniform but for it."""

    rule: Mapping[str, Any]
    chances: tuple[float, ...]

    @property
    def truth(self) -> float:
        by_kind = [sum(self.chances[at : at + 2]) for at in (0, 2, 4)]
        values = [
            sum(p * r for p, r in zip(by_kind, rates, strict=True)) for rates in CLICKS.values()
        ]
        return sum(values) / len(values)


CASES = {
    "cap": Case(
        {"cap": {"of": "kind", "is": "food", "share": 0.2}}, (0.1, 0.1, 0.2, 0.2, 0.2, 0.2)
    ),
    "floor": Case({"floor": {"arm": "bed1", "share": 0.4}}, (0.12, 0.12, 0.12, 0.12, 0.4, 0.12)),
    "pin": Case({"pin": {"arm": "toy2", "share": 0.1}}, (0.18, 0.18, 0.18, 0.1, 0.18, 0.18)),
}


BUDGETS = {
    "share": {"cap": {"of": "kind", "is": "food", "share": 0.2, "every": 500}},
    "count": {"cap": {"of": "kind", "is": "food", "count": 300, "every": "day"}},
    "floor": {"floor": {"arm": "bed1", "share": 0.3, "every": 500}},
}


def log_of(
    rule: Mapping[str, Any], seed: int, decisions: int = DECISIONS
) -> tuple[MemoryStore, float]:
    """Return decisions of a policy under the rule, cats and dogs in turn by chance, with their
    clicks; and the mean value of a uniform policy under the bounds of each decision."""
    store, rng, values = MemoryStore(), Random(seed), list[float]()

    async def visit(services: Services) -> None:
        pet = rng.choice([*CLICKS])
        answer = await services.selector.select(SelectRequest({"pet": pet}, "shop"))
        values.append(uniform_value(state_of(services), answer.decision))
        [arm] = answer.decision.shown
        click = float(rng.random() < CLICKS[pet][KINDS.index(arm.arm[:-1])])
        await services.settlements.reward(RewardRequest(answer.token, reward=click))

    async def play(services: Services) -> None:
        policies = {
            "lints": {"kind": "lints", "draws": 64, "epsilon": 0.2},
            "even": {"kind": "random", "share": 0.0},
        }
        await define(services, {**shop(**policies), "rules": {"rule": rule}})
        for _ in range(decisions // TOGETHER):
            await asyncio.gather(*(visit(services) for _ in range(TOGETHER)))

    run_virtual(live(store, play, rng=Random(f"services {seed}")))
    return store, fmean(values)


def uniform_value(state: State, decision: Decision) -> float:
    """Return the clicks that a uniform policy earns within the bounds of a decision."""
    candidates = candidates_of(state, decision)
    limits = limits_of(state, decision, candidates)
    context, learner = state.schema.encode_context(decision.context), state.learners["even"]
    p, _ = decide(Decider.serving(learner), context, candidates, 1, 0, decision.facts, limits)
    rates = CLICKS[decision.context["pet"]]
    return sum(
        float(chance) * rates[KINDS.index(arm[:-1])]
        for arm, chance in zip(candidates.ids, p, strict=True)
    )


def estimates(rule: Mapping[str, Any], seed: int) -> tuple[Mapping[str, EstimateAnswer], float]:
    """Return the estimates of a uniform policy on a log, and its value there."""
    request = EvaluationRequest("shop", definitions={"uniform": {"kind": "random"}})
    store, value = log_of(rule, seed)
    answer = run_virtual(evaluate(store, request))
    return answer.policies[0].estimates, value


def expect_covered(name: str, rule: Mapping[str, Any], truth: float | None = None) -> None:
    """Expect most intervals to hold the truth; None: the value on each log."""
    covered = {"ips": 0, "dr": 0}
    for seed in range(LOGS):
        found, value = estimates(rule, seed)
        for estimator in covered:
            low, high = found[estimator].interval
            covered[estimator] += low <= (value if truth is None else truth) <= high
    print(f"{name}: {covered} of {LOGS}")  # noqa: T201
    assert min(covered.values()) >= COVERED


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", CASES)
def test_intervals_cover_the_value_of_another_policy_under_the_same_rule(name: str) -> None:
    expect_covered(name, CASES[name].rule, CASES[name].truth)


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", BUDGETS)
def test_intervals_cover_the_value_of_another_policy_under_a_budget(name: str) -> None:
    expect_covered(f"{name} over a window", BUDGETS[name])


# -- what a log cannot tell ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"cap": {"of": "kind", "is": "food", "share": 1e-6}}, "weights have the mean 0.6"),
        ({"floor": {"arm": "bed1", "share": 1.0}}, "had no chance of being shown in the log"),
        ({"pin": {"arm": "toy2", "share": 1.0}}, "had no chance of being shown in the log"),
        (
            {"cap": {"arm": "food1", "count": 20, "every": "day"}},
            "had no chance of being shown in the log: food1",
        ),
    ],
)
def test_a_policy_without_a_rule_that_kept_arms_out_of_the_log_has_no_estimate(
    rule: Mapping[str, Any], why: str
) -> None:
    store, _ = log_of(rule, 0, 500)
    uniform = {"uniform": {"kind": "random"}}
    request = EvaluationRequest("shop", definitions=uniform, rules={"rule": None})
    [found] = run_virtual(evaluate(store, request)).policies
    assert why in (found.refused or "")
    assert found.estimates == {}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_that_did_not_hold_has_no_estimate(name: str) -> None:
    """What would have been shown in its window, the log does not say."""
    store, _ = log_of({"cap": {"of": "arm", "share": 0.9}}, 0, 100)
    request = EvaluationRequest("shop", policies=["even"], rules={"rule": BUDGETS[name]})
    with pytest.raises(Invalid, match="a log cannot tell what would have been shown in a window"):
        run_virtual(evaluate(store, request))
