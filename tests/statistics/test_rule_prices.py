"""Shops whose click rates are known, under rules that are measured: how often the intervals of
prices ever miss what each rule costs."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from service.analysis.rule_prices import price_terms, prices_of
from service.analysis.rule_prices_answer import RulePrices
from service.analysis.sequences import ConfidenceSequence, counted
from service.analysis.verdict import ALPHA, LEAST_UNITS, effective_units
from service.bandits.linalg import Array
from service.decide.scoring import decide
from service.decide.traffic import rules_off
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.decider import Decider
from service.state.events import ArmUpserted
from service.state.fold import State
from service.state.rulebook import Situation
from tests.statistics.ruled import CLICKS, LATE
from tests.support.clock import run_virtual
from tests.unit.audited import decisions_of, define, live, state_of
from tests.unit.test_rulebook import ARMS, AT, DAY, DE, NOON, POLICIES, learn, state_with

pytestmark = pytest.mark.statistics

RULES: dict[str, Mapping[str, Any]] = {
    "varied": {"cap": {"of": "arm", "share": 0.3}},
    "fresh": {"floor": {"of": "new", "younger_than": "14d", "share": 0.2}},
    "germans": {"explore": {"share": 0.4, "if": "country == 'DE'"}},
    "austrians": {"explore": {"share": 0.2, "if": "country == 'AT'"}},
}
SETS = [frozenset(each) for size in range(len(RULES) + 1) for each in combinations(RULES, size)]
"""Rules that may be off together."""
COUNTRIES = [DE, AT]
RATES = {
    "ball": (0.3, 0.1), "rope": (0.05, 0.1), "bone": (0.6, 0.4), "fish": (0.5, 0.1),
    "nest": (0.05, 0.2), "late": (0.02, 0.1),
}  # fmt: skip
"""Click rates of arms, in each country."""

LATER = NOON + 13 * DAY + 3_600.0
"""A time when the first arms are older than a new one, and the last is not."""

LOGS, DECISIONS, VISITORS, LOOK = 100, 20_000, 8_000, 500


@cache
def shop(measure: float) -> State:
    """A shop whose policy has learned, and is done; one arm is new."""
    state = state_with({**RULES, "measure": measure}, policies={"lints": POLICIES["lints"]})
    for arm, clicks in CLICKS.items():
        learn(state, arm, 1.0, times=clicks)
        learn(state, arm, 0.0, times=5 - clicks)
    event = ArmUpserted(at=NOON - 3_600, arm="late", features={"kind": LATE["kind"]}, attributes={})
    state.apply(state.position + 1, event)
    return state


def values_of(state: State, policy: str, at: float) -> Array:
    """Return what a decision earns in expectation, by (country, rules that are off)."""
    values = np.empty((len(COUNTRIES), len(SETS)))
    for country, context in enumerate(COUNTRIES):
        for place, off in enumerate(SETS):
            names = tuple([name for name in RULES if name in off])
            ruled = state.rule(state.candidates, Situation(context, at, off=names))
            decider = Decider.serving(state.learners[policy])
            x = state.schema.encode_context(context)
            p, _ = decide(decider, x, ruled.candidates, 1, 1, limits=ruled.limits)
            rates = [RATES[arm][country] for arm in ruled.candidates.ids]
            values[country, place] = p @ np.array(rates)
    return values


def costs_of(values: Array, country: Sequence[int], off: Sequence[frozenset[str]]) -> Array:
    """Return what each rule costs in each of n decisions, (n, R)."""
    rows = np.array(country)

    def places(rule: str, *, without: bool) -> list[int]:
        return [SETS.index(each | {rule} if without else each - {rule}) for each in off]

    each = [
        values[rows, places(rule, without=True)] - values[rows, places(rule, without=False)]
        for rule in RULES
    ]
    return np.column_stack(each)


class Log(NamedTuple):
    """Decisions that count: (n,), and by rule (n, R)."""

    unit: npt.NDArray[np.int64]
    off: npt.NDArray[np.bool_]
    reward: Array
    cost: Array


def log_of(state: State, values: Array, seed: int) -> Log:
    """Visitors come back, live in a country and have a level of their own."""
    rng = np.random.default_rng(seed)
    sets = [frozenset(rules_off(state, f"{seed} {number}")) for number in range(VISITORS)]
    country = rng.integers(len(COUNTRIES), size=VISITORS)
    level = rng.uniform(0.5, 1.5, VISITORS)
    unit = rng.integers(VISITORS, size=DECISIONS)
    unit = unit[counted(unit)]
    rate = level * values[country, [SETS.index(off) for off in sets]]
    cost = level[:, None] * costs_of(values, country.tolist(), sets)
    off = np.array([[name in names for name in RULES] for names in sets])
    return Log(unit, off[unit], (rng.random(len(unit)) < rate[unit]).astype(float), cost[unit])


def test_the_interval_of_a_price_holds_at_all_looks() -> None:
    """Of 100 logs, at most 5 are ever missed by the interval of a rule."""
    measure = 0.05
    state = shop(measure)
    values = values_of(state, "lints", LATER)
    missed, shows = np.zeros(len(RULES), int), np.zeros(len(RULES), int)
    for seed in range(LOGS):
        log = log_of(state, values, seed)
        looks = np.arange(LOOK - 1, len(log.unit), LOOK)
        effective = effective_units(np.full(len(log.unit), measure), log.unit)
        looks = looks[effective[looks] >= LEAST_UNITS]
        for place in range(len(RULES)):
            off, on = price_terms(log.off[:, place], measure, log.reward, 0.0, 1.0)
            sequence = ConfidenceSequence(off - on, log.unit, ALPHA / len(RULES))
            means, halves = sequence.at(looks)
            truth = np.cumsum(log.cost[:, place])[looks] / (looks + 1)
            missed[place] += bool((np.abs(means - truth) > halves).any())
            shows[place] += bool(abs(means[-1]) > halves[-1])
    costs = costs_of(values, [0, 1], [frozenset()] * 2).mean(axis=0).round(4).tolist()
    for name, cost, misses, tells in zip(RULES, costs, missed, shows, strict=True):
        print(f"{name} costs {cost:.4f}, missed in {misses} of {LOGS} logs, shows in {tells}")  # noqa: T201
    assert (missed <= 0.05 * LOGS).all()


# -- a log as a service writes it ------------------------------------------------------------------

WEEKS = 20 * 86_400.0
"""Seconds after which the first arms are not new."""


def definition(measure: float, arms: Sequence[str], **policy: Any) -> dict[str, Any]:
    return {
        "features": {
            "context": {"country": {"type": "categorical", "values": ["DE", "AT"]}},
            "arm": {"kind": {"type": "categorical", "values": ["toy", "food", "bed"]}},
        },
        "arms": {arm: {"kind": {**ARMS, "late": LATE}[arm]["kind"]} for arm in arms},
        "policies": {"main": {"kind": "lints", "draws": 64, **policy}},
        "rules": {**RULES, "measure": measure},
    }


async def visit(services: Services, rng: Random, number: int, arm: str | None = None) -> None:
    country = rng.randrange(len(COUNTRIES))
    arms = None if arm is None else [arm]
    request = SelectRequest(COUNTRIES[country], "shop", arms=arms, unit=f"visitor {number}")
    answer = await services.selector.select(request)
    shown = answer.decision.shown[0].arm
    clicked = float(rng.random() < RATES[shown][country])
    await services.settlements.reward(RewardRequest(answer.token, reward=clicked))


def test_the_price_of_each_rule_of_a_service_is_within_its_interval() -> None:
    """A cap, a floor of new arms, and exploration in two segments, of a policy that is done."""
    store, count, found = MemoryStore(), 6_000, list[RulePrices]()
    values = list[Array]()

    async def play(services: Services) -> None:
        rng = Random(5)
        await define(services, definition(0.5, [*ARMS]))
        for number, arm in enumerate([*ARMS] * 40):
            await visit(services, rng, -number - 1, arm)
        await asyncio.sleep(WEEKS)
        await define(services, definition(0.4, [*ARMS, "late"], learning=False))
        for number in range(count):
            await visit(services, rng, number)
        state = state_of(services)
        values.append(values_of(state, "main", state.log_time))
        found.append(await prices_of(store, "shop"))

    run_virtual(live(store, play, rng=Random(6)))
    decisions = decisions_of(store)[-count:]
    country = [COUNTRIES.index(dict(each.context)) for each in decisions]
    off = [frozenset(each.facts.off) for each in decisions]
    truth = costs_of(values[0], country, off).mean(axis=0).tolist()
    for rule, cost in zip(found[0].rules, truth, strict=True):
        assert rule.price is not None
        low, high = rule.price.interval
        print(f"{rule.name}: {low:.4f} to {high:.4f}, in truth {cost:.4f}; {rule.sentence}")  # noqa: T201
        assert rule.price.decisions == count
        assert low < cost < high
