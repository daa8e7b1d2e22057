"""Intervals of off-policy estimates over logs whose truth is known, and how far estimates are off.

The short form takes 100 logs of one world; `make statistics` takes 200 logs of each, and 200 that a
service's own code wrote, in which every policy learns: their truth is the mean of what each policy
would have earned decision by decision, from the click chances themselves.
"""

import asyncio
from random import Random

import numpy as np
import pytest

from service.definition.select_request import SelectRequest
from service.evaluation.columns import Columns
from service.evaluation.estimators import Estimate, estimate
from service.evaluation.request import Selection
from service.evaluation.rows import choose
from service.evaluation.targets import ExtraPolicies
from service.evaluation.walk import Walk
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.serving.settlement import RewardRequest
from tests.statistics.logs import WORLDS, log_of
from tests.support.clock import run_virtual
from tests.unit.audited import define, live
from tests.unit.folding import shop

LOGS = 200
RESAMPLES = 200
CONTRACT = 0.93
NOMINAL = ("snips", "dr")
KINDS = ("interval", "bootstrap")


class Tally:
    """Of estimates against the truth: intervals that held it, and squared errors."""

    def __init__(self) -> None:
        self.hits: dict[tuple[str, str], int] = {}
        self.squares: dict[str, list[float]] = {}

    def add(self, found: dict[str, Estimate], truth: float) -> None:
        for name, each in found.items():
            self.squares.setdefault(name, []).append((each.value - truth) ** 2)
            for kind in KINDS:
                low, high = getattr(each, kind)
                self.hits[name, kind] = self.hits.get((name, kind), 0) + (low <= truth <= high)

    def covered(self, name: str, kind: str = "interval") -> float:
        return self.hits[name, kind] / len(self.squares[name])

    def rmse(self, name: str) -> float:
        return float(np.sqrt(np.mean(self.squares[name])))

    def farther(self, name: str, other: str) -> float:
        """How much farther off one is than another, in standard errors of the mean difference of
        their squared errors over the same logs."""
        differences = np.subtract(self.squares[name], self.squares[other])
        return float(differences.mean() / (differences.std(ddof=1) / np.sqrt(len(differences))))

    def told(self, title: str) -> str:
        parts = [
            f"{name} {self.rmse(name):.4f} "
            f"({'/'.join(f'{self.covered(name, kind):.3f}' for kind in KINDS)})"
            for name in self.squares
        ]
        return f"{title}: {', '.join(parts)}"


def tally(world: str, rows: int, logs: int) -> Tally:
    known, found = WORLDS[world], Tally()
    for seed in range(logs):
        log = log_of(known, rows, seed)
        found.add(estimate(log, resamples=RESAMPLES), known.truth)
    return found


def test_intervals_of_100_logs_cover_the_truth_and_dr_is_nearer_to_it_than_ips() -> None:
    """95 percent intervals: at least 87 of 100, which chance misses once in 1,000."""
    found = tally("skewed", 400, 100)
    for name in NOMINAL:
        assert found.covered(name) >= 0.87, found.told("skewed")
    assert found.rmse("dr") <= found.rmse("ips")


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("world", list(WORLDS))
def test_intervals_of_200_logs_cover_at_least_93_percent(world: str) -> None:
    found = tally(world, 1_000, LOGS)
    print(found.told(world))  # noqa: T201
    for name in NOMINAL:
        assert found.covered(name) >= CONTRACT
    assert found.rmse("dr") <= found.rmse("ips")


# -- logs that a service wrote -------------------------------------------------------------------

DECISIONS = 300
POLICIES = {
    "lints": {"kind": "lints", "draws": 64},
    "random": {"kind": "random"},
}
IDEA = {"idea": {"kind": "lints", "draws": 64, "epsilon": 0.1}}


def click_chance(pet: str, arm: str) -> float:
    return 0.6 if (pet, arm[:3]) in (("cat", "foo"), ("dog", "toy")) else 0.15


def written(seed: int) -> MemoryStore:
    """By a service whose policies learn and share the traffic."""
    store, rng = MemoryStore(), Random(seed)

    async def play(services: Services) -> None:
        await define(services, shop(**POLICIES))
        for _ in range(DECISIONS):
            pet = rng.choice(["cat", "dog"])
            answer = await services.engine.select(SelectRequest({"pet": pet}, "shop"))
            arm = answer.decision.shown[0].arm
            reward = float(rng.random() < click_chance(pet, arm))
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

    run_virtual(live(store, play))
    return store


async def evaluated(store: MemoryStore) -> dict[str, tuple[dict[str, Estimate], float]]:
    """Estimates and truth by policy."""
    names = [*POLICIES, *IDEA]
    chosen = await choose(store, "shop", Selection())
    walk, columns = Walk(store, "shop", names, ExtraPolicies(IDEA)), Columns(names)
    truth = dict.fromkeys(names, 0.0)
    async for visit in walk.decisions(chosen):
        columns.add(visit, float(chosen.rewards[visit.index]))
        chances = [click_chance(visit.decision.context["pet"], arm) for arm in visit.arms]
        for name in names:
            truth[name] += float(visit.targets[name] @ chances) / len(chosen)
    assert len(columns) == DECISIONS
    return {
        name: (estimate(columns.logged(name, walk.range), resamples=RESAMPLES), truth[name])
        for name in names
    }


def write_and_evaluate(logs: int) -> dict[str, Tally]:
    found = {name: Tally() for name in [*POLICIES, *IDEA]}
    for seed in range(logs):
        for name, (estimates, truth) in asyncio.run(evaluated(written(seed))).items():
            found[name].add(estimates, truth)
    return found


def test_estimates_from_a_log_that_a_service_wrote_lie_near_the_truth() -> None:
    """Of 3 policies, with a standard error of about 0.03 each."""
    for name, found in write_and_evaluate(1).items():
        for estimator in NOMINAL:
            assert found.rmse(estimator) < 0.12, found.told(name)


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
def test_intervals_of_200_logs_that_a_service_wrote_cover_at_least_93_percent() -> None:
    by_policy = write_and_evaluate(LOGS)
    print("\n".join(found.told(name) for name, found in by_policy.items()))  # noqa: T201
    for name, found in by_policy.items():
        for estimator in NOMINAL:
            assert found.covered(estimator) >= CONTRACT, found.told(name)
        # What shows each arm as often as the log does leaves no weights to make up for: both are as
        # near then, and which is nearer is chance.
        least = 3.0 if name == "random" else 0.0
        assert found.farther("dr", "ips") <= least, found.told(name)
