"""Intervals that remain, over logs that a service wrote, whose truth is known from click chances.

Four logs: a policy that chooses among shortlists of a large catalogue, chance over few arms, a
policy with a floor, and two policies that share the traffic. What is estimated across shortlists
must be refused on every one of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from service.analysis.columns import Columns
from service.analysis.estimators import ESTIMATORS, estimate
from service.analysis.evaluation_answer import EstimateAnswer
from service.analysis.history import read_history
from service.analysis.refusals import refusal, summarize
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.selected import selected
from service.analysis.targets import ExtraPolicies
from service.analysis.walk import Walk
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from tests.statistics.test_evaluation_coverage import Tally
from tests.support.clock import run_virtual
from tests.unit.audited import define, live

IDEA = {"kind": "lints", "draws": 64, "epsilon": 0.2}


@dataclass(frozen=True)
class Course:
    """policies: that decide; target: whose value is estimated, one of them or of `ideas`; refused:
    that must be, on the same log."""

    arms: int
    policies: dict[str, Any]
    target: str
    ideas: dict[str, Any]
    refused: Sequence[str] = ()
    decisions: int = 300

    def chance(self, arm: str) -> float:
        """Rising with the number that the arm has as a feature; 0.28 in the mean."""
        return 0.1 + 0.54 * (int(arm[1:]) / self.arms) ** 2


COURSES = {
    "retrieved": Course(
        800,
        {
            "ts": {"kind": "lints", "draws": 64, "retrieve": 20, "epsilon": 0.2},
            "random": {"kind": "random", "share": 0.0},
        },
        "ts",
        {},
        ["random"],
    ),
    "uniform": Course(12, {"random": {"kind": "random"}}, "idea", {"idea": IDEA}),
    "floored": Course(
        12, {"ts": {"kind": "lints", "draws": 64, "epsilon": 0.4}}, "idea", {"idea": IDEA}
    ),
    "shared": Course(
        12, {"ts": {"kind": "lints", "draws": 64}, "random": {"kind": "random"}}, "ts", {}
    ),
}


def written(course: Course, seed: int) -> MemoryStore:
    store, rng = MemoryStore(), Random(seed)
    definition = {
        "features": {
            "context": {"pet": {"type": "categorical", "values": ["cat", "dog"]}},
            "arm": {"quality": {"type": "numeric", "scale": 1.0}},
        },
        "policies": course.policies,
        "arms": {f"a{n}": {"quality": n / course.arms} for n in range(course.arms)},
        "reward": {"range": [0, 1]},
    }

    async def play(services: Services) -> None:
        await define(services, definition)
        for _ in range(course.decisions):
            asked = SelectRequest({"pet": rng.choice(["cat", "dog"])}, "shop")
            answer = await services.selector.select(asked)
            chance = course.chance(answer.decision.shown[0].arm)
            reward = float(rng.random() < chance)
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

    run_virtual(live(store, play))
    return store


def refused(columns: Columns, policy: str, range_: tuple[float, float]) -> str | None:
    weights = summarize(columns.logged(policy, range_))
    return refusal(columns, policy, weights, None, EvaluationRequest(least_effective=1.0))


async def evaluated(course: Course, store: MemoryStore) -> tuple[dict[str, EstimateAnswer], float]:
    """Estimates, and what the target would have earned in the mean."""
    target, names = course.target, [course.target, *course.refused]
    chosen = selected(await read_history(store, "shop"), Selection())
    walk, columns, truth = (
        Walk(store, "shop", names, ExtraPolicies(course.ideas)),
        Columns(names),
        0.0,
    )
    async for visit in walk.decisions(chosen):
        columns.add(visit)
        truth += float(visit.targets[target] @ [course.chance(arm) for arm in visit.arms])
    columns.settle(chosen)
    assert refused(columns, target, walk.range) is None
    for name in course.refused:
        assert "chose from other candidates" in str(refused(columns, name, walk.range))
    return estimate(columns.logged(target, walk.range)), truth / len(columns)


def tally(name: str, logs: int) -> Tally:
    course, found = COURSES[name], Tally()
    for seed in range(logs):
        found.add(*asyncio.run(evaluated(course, written(course, seed))))
    return found


@pytest.mark.parametrize(
    "name",
    [name if name == "uniform" else pytest.param(name, marks=pytest.mark.slow) for name in COURSES],
)
def test_intervals_of_a_few_logs_hold_the_truth(name: str) -> None:
    """Of 6 logs at most 2 miss, which intervals of 95 percent do once in 400 courses."""
    found = tally(name, 6)
    for estimator in ESTIMATORS:
        assert found.covered(estimator) >= 4 / 6, found.told(name)


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", list(COURSES))
def test_intervals_of_200_logs_hold_the_truth_in_92_percent(name: str) -> None:
    """Of 200 at 95 percent, 92 percent are two standard errors below."""
    found = tally(name, 200)
    print(found.told(name))  # noqa: T201
    for estimator in ESTIMATORS:
        assert found.covered(estimator) >= 0.92, found.told(name)
