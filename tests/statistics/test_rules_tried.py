"""What a rule would have cost, from a log that did not know it: intervals cover its true value."""

import asyncio
from random import Random
from typing import Any

import pytest

from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.statistics.test_rules_evaluated import CASES, CLICKS, COVERED, DECISIONS, LOGS, TOGETHER
from tests.support.clock import run_virtual
from tests.unit.audited import define, live
from tests.unit.folding import KINDS, shop

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(1_200)]


def log_without_rules(seed: int) -> MemoryStore:
    """Decisions of a policy that explores, and a uniform one that never decides."""
    store, rng = MemoryStore(), Random(seed)

    async def visit(services: Services) -> None:
        pet = rng.choice([*CLICKS])
        answer = await services.selector.select(SelectRequest({"pet": pet}, "shop", "main"))
        [arm] = answer.decision.shown
        click = float(rng.random() < CLICKS[pet][KINDS.index(arm.arm[:-1])])
        await services.settlements.reward(RewardRequest(answer.token, reward=click))

    async def play(services: Services) -> None:
        main: dict[str, Any] = {"kind": "lints", "draws": 64, "epsilon": 0.2}
        await define(services, shop(main=main, uniform={"kind": "random"}))
        for _ in range(DECISIONS // TOGETHER):
            await asyncio.gather(*(visit(services) for _ in range(TOGETHER)))

    run_virtual(live(store, play, rng=Random(f"services {seed}")))
    return store


def test_intervals_of_a_policy_under_a_rule_that_never_held_cover_its_value() -> None:
    covered = dict.fromkeys(CASES, 0)
    for seed in range(LOGS):
        store = log_without_rules(seed)
        for name, case in CASES.items():
            request = EvaluationRequest("shop", policies=["uniform"], rules={"rule": case.rule})
            [found] = run_virtual(evaluate(store, request)).policies
            interval = found.estimates["dr"].interval
            covered[name] += interval[0] <= case.truth <= interval[1]
    assert min(covered.values()) >= COVERED, covered
