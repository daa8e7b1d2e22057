"""Values of shadows against the truth: over logs of the pet shop, and ever over long streams."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from service.analysis.anytime import WEIGHT_CAP, known, surprise
from service.analysis.columns import Columns
from service.analysis.estimators import estimate
from service.analysis.evaluate import evaluate
from service.analysis.history import read_history
from service.analysis.request import LEAST_EFFECTIVE, EvaluationRequest, Selection
from service.analysis.selected import selected
from service.analysis.sequences import ConfidenceSequence, Terms, sum_of_squares
from service.analysis.targets import ExtraPolicies
from service.analysis.walk import Walk
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from simulator_client.worlds.zooplus import Zooplus
from tests.support.clock import run_virtual
from tests.unit.audited import define, live

Array = npt.NDArray[np.float64]

SHADOWS = ("auto", "linucb", "lints", "squarecb", "popularity")
OUTSIDE = {"share": 0.0, "shadow": True}


def written(visits: int, seed: int, epsilon: float = 0.05) -> tuple[MemoryStore, dict[str, Any]]:
    """The log of a policy with a floor, beside five shadows, and the shadows."""
    store, world, rng = MemoryStore(), Zooplus(42), Random(seed)
    definition, stream = world.definition(["linucb"]), world.stream(seed)
    shadows = {f"{kind}_shadow": {"kind": kind, **OUTSIDE} for kind in SHADOWS}
    definition["policies"] = {"main": {"kind": "linucb", "epsilon": epsilon}, **shadows}

    async def play(services: Services) -> None:
        await define(services, definition)
        for number in range(visits):
            visit = stream.visit(number)
            asked = SelectRequest(world.request(visit)["context"], "shop")
            answer = await services.selector.select(asked)
            reward = world.outcome(visit, [answer.decision.shown[0].arm]).clicks
            await services.settlements.reward(RewardRequest(answer.token, reward=reward))

    run_virtual(live(store, play, rng))
    return store, shadows


async def hits(store: MemoryStore, shadows: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Which intervals hold what each shadow would have earned, by the chances of the simulator."""
    world, names = Zooplus(42), list(shadows)
    of_persona = {persona: number for number, persona in enumerate(world.personas)}
    chosen = selected(await read_history(store, "shop"), Selection())
    walk = Walk(store, "shop", names, ExtraPolicies(shadows))
    columns = Columns(names, anytime=True)
    truth = dict.fromkeys(names, 0.0)
    async for logged in walk.decisions(chosen):
        columns.add(logged)
        user = of_persona[str(logged.decision.context["persona"])]
        chances = np.array([world.click_probability(user, arm) for arm in logged.arms])
        for name in names:
            truth[name] += float(logged.targets[name] @ chances)
    columns.settle(chosen)
    found = Counter[tuple[str, str]]()
    for name in names:
        log = columns.logged(name, walk.range)
        fixed, watched = estimate(log), columns.intervals(name, 0.95)
        assert watched is not None
        ends = {kind: fixed[kind].interval for kind in ("dr", "snips")} | {"watched": watched[0]}
        for kind, (low, high) in ends.items():
            found[name, kind] += low <= truth[name] / len(columns) <= high
    return found


def tally(logs: int, visits: int) -> Counter[tuple[str, str]]:
    found = Counter[tuple[str, str]]()
    for seed in range(logs):
        found += asyncio.run(hits(*written(visits, seed)))
    return found


def test_intervals_of_a_few_logs_hold_what_shadows_would_have_earned() -> None:
    """Of 4 logs at most one misses, which intervals of 95 percent exceed once in 70 courses."""
    found = tally(4, 400)
    for name in SHADOWS:
        assert found[f"{name}_shadow", "watched"] >= 3, found


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
def test_intervals_of_50_logs_hold_what_shadows_would_have_earned() -> None:
    """Those that are shown; fixed ones are told beside them, whose weights reach 1,000 here."""
    found = tally(50, 2_000)
    print(dict(found))  # noqa: T201
    for name in SHADOWS:
        assert found[f"{name}_shadow", "watched"] >= 44, found


def test_without_support_there_is_a_refusal() -> None:
    """A policy that shows one arm for sure says nothing of those that would show others."""
    store, shadows = written(200, 0, epsilon=0.0)
    found = asyncio.run(evaluate(store, EvaluationRequest("shop", shadows=True)))
    refused = {each.policy: each.refused for each in found.policies}
    assert set(refused) == set(shadows)
    assert "no chance of being shown" in str(refused["popularity_shadow"])


# -- over time -------------------------------------------------------------------------------------

LOOK = 100
ARMS = 4


@dataclass(frozen=True)
class Setup:
    """random: share of a policy that shows any arm; the other shows the best so far and a tenth of
    the time any; rate: of a usual click."""

    random: float
    rate: float
    visitors: int = 20_000


SETUPS = {
    "a floor": Setup(0.0, 0.2),
    "a random policy beside it": Setup(0.2, 0.2),
    "rare clicks": Setup(0.2, 0.01),
    "few visitors": Setup(0.2, 0.2, 400),
}
TARGETS = ("learns", "fixed")


def ever_missed(setup: Setup, count: int, n: int, seed: int = 0) -> dict[str, Array]:
    """How many of the streams ever miss, by their value and by the difference to the log: of a
    target that shows the best so far and of one that always shows the last arm.

    Visitors come back, keep the policy that chance gave them, and like arms of their own.
    """
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, setup.visitors + 1) ** 0.5
    unit = rng.choice(setup.visitors, size=(count, n), p=weights / weights.sum())
    any_arm = rng.random((count, setup.visitors)) < setup.random
    levels = rng.gamma(2.0, 0.5, (count, setup.visitors, ARMS)) * setup.rate
    levels = np.minimum(levels * np.linspace(1.3, 0.8, ARMS), 1.0)
    rows, shown, clicked = np.arange(count), np.full((count, ARMS), 2.0), np.ones((count, ARMS))
    found = {target: Found.empty(count, n) for target in TARGETS}
    for place in range(n):
        who = unit[:, place]
        q, level = clicked / shown, levels[rows, who]
        best = q.argmax(axis=1)
        greedy = np.full((count, ARMS), 0.1 / ARMS)
        greedy[rows, best] += 0.9
        b = setup.random / ARMS + (1 - setup.random) * greedy
        any_one = any_arm[rows, who] | (rng.random(count) < 0.1)
        arm = np.where(any_one, rng.integers(ARMS, size=count), best)
        reward = (rng.random(count) < level[rows, arm]).astype(float)
        chances = np.eye(ARMS)[best], np.eye(ARMS)[np.full(count, ARMS - 1)]
        for each, p in zip(found.values(), chances, strict=True):
            each.weight[:, place] = w = p[rows, arm] / b[rows, arm]
            for side, guess, earned in ((0, q, reward), (1, 1 - q, 1 - reward)):
                expected = (b * guess).sum(axis=1)
                each.known[0, side, :, place] = known(p, b, guess)
                each.surprise[0, side, :, place] = surprise(w, earned, guess[rows, arm])
                each.known[1, side, :, place] = each.known[0, side, :, place] - expected
                each.surprise[1, side, :, place] = each.surprise[0, side, :, place] - (
                    earned - expected
                )
            each.truth[0, :, place] = (p * level).sum(axis=1)
            each.truth[1, :, place] = ((p - b) * level).sum(axis=1)
        np.add.at(shown, (rows, arm), 1)
        np.add.at(clicked, (rows, arm), reward)
    return {
        target: sum(each.misses(stream, unit[stream]) for stream in range(count))
        for target, each in found.items()
    }


class Found(NamedTuple):
    """Of a target: first axis value and difference, second the terms of r and of 1 - r."""

    weight: Array  # (S, n)
    known: Array  # (2, 2, S, n)
    surprise: Array  # (2, 2, S, n)
    truth: Array  # (2, S, n)

    @classmethod
    def empty(cls, count: int, n: int) -> "Found":
        shapes = (count, n), (2, 2, count, n), (2, 2, count, n), (2, count, n)
        return cls(*map(np.empty, shapes))

    def misses(self, stream: int, unit: npt.NDArray[np.int64]) -> Array:
        """Whether a look misses the truth, of those with enough decisions in effect, (2,)."""
        weight = self.weight[stream]
        squares = np.maximum(sum_of_squares(weight, unit), 1e-9)
        looks = np.arange(LOOK - 1, len(unit), LOOK)
        looks = looks[(np.cumsum(weight) ** 2 / squares)[looks] >= LEAST_EFFECTIVE]
        missed = np.zeros(2)
        for measure, whole in ((0, 1.0), (1, 0.0)):
            truth = np.cumsum(self.truth[measure, stream])[looks] / (looks + 1)
            for side, true in ((0, truth), (1, whole - truth)):
                parts = self.known[measure, side, stream], self.surprise[measure, side, stream]
                means, halves = ConfidenceSequence(Terms(*parts, WEIGHT_CAP), unit, 0.05).at(looks)
                missed[measure] = max(missed[measure], float((means - halves > true).any()))
        return missed


@pytest.mark.statistics
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", SETUPS)
def test_few_streams_ever_miss(name: str) -> None:
    """At most 5 percent: more than the 1 percent quantile of that are a failure."""
    count = 200
    missed = ever_missed(SETUPS[name], count, 20_000)
    print(name, {target: each.tolist() for target, each in missed.items()}, "of", count)  # noqa: T201
    for each in missed.values():
        assert (each <= binom.ppf(0.99, count, 0.05)).all(), missed
