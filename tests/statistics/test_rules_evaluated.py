"""Estimates of another policy under the rules that bound the log: intervals cover its true value.

A policy that learns makes each log under a rule. The other one is uniform but for the rule, so that
its chances, and with them its value, are known by hand.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from service.analysis.evaluate import evaluate
from service.analysis.evaluation_answer import EstimateAnswer
from service.analysis.request import EvaluationRequest
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.support.clock import run_virtual
from tests.unit.audited import define, live
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


def log_of(rule: Mapping[str, Any], seed: int) -> MemoryStore:
    """Decisions of a policy under the rule, cats and dogs in turn by chance, and their clicks."""
    store, rng = MemoryStore(), Random(seed)

    async def visit(services: Services) -> None:
        pet = rng.choice([*CLICKS])
        answer = await services.selector.select(SelectRequest({"pet": pet}, "shop"))
        [arm] = answer.decision.shown
        click = float(rng.random() < CLICKS[pet][KINDS.index(arm.arm[:-1])])
        await services.settlements.reward(RewardRequest(answer.token, reward=click))

    async def play(services: Services) -> None:
        policies = {"lints": {"kind": "lints", "draws": 64, "epsilon": 0.2}}
        await define(services, {**shop(**policies), "rules": {"rule": rule}})
        for _ in range(DECISIONS // TOGETHER):
            await asyncio.gather(*(visit(services) for _ in range(TOGETHER)))

    run_virtual(live(store, play, rng=Random(f"services {seed}")))
    return store


def estimates(rule: Mapping[str, Any], seed: int) -> Mapping[str, EstimateAnswer]:
    request = EvaluationRequest("shop", definitions={"uniform": {"kind": "random"}})
    answer = run_virtual(evaluate(log_of(rule, seed), request))
    return answer.policies[0].estimates


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", CASES)
def test_intervals_cover_the_value_of_another_policy_under_the_same_rule(name: str) -> None:
    case = CASES[name]
    covered = {"ips": 0, "dr": 0}
    for seed in range(LOGS):
        found = estimates(case.rule, seed)
        for estimator in covered:
            low, high = found[estimator].interval
            covered[estimator] += low <= case.truth <= high
    print(f"{name}: {covered} of {LOGS}")  # noqa: T201
    assert min(covered.values()) >= COVERED
