"""Prices of rules in the pet shop, whose click rates are known: intervals hold what rules cost.

A policy learns while it decides. What a rule costs in a decision follows from the chances of the
arms in the state that made it, without the rule and with it, and from the visitor's click rates.
"""

import os
from random import Random
from typing import Any

import numpy as np
import pytest

from service.analysis.rule_prices import prices_of
from service.analysis.rule_prices_answer import RulePrices
from service.analysis.sequences import counted
from service.bandits.linalg import Array
from service.decide.scoring import decide
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.decider import Decider
from service.state.decisions import Decision
from service.state.fold import State
from service.state.rulebook import Situation
from simulator_client.worlds.zooplus import Zooplus
from tests.statistics.test_rules_in_a_shop import NEW, RULES
from tests.support.clock import run_virtual
from tests.unit.audited import define, live, state_of

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(7_200)]

LOGS = int(os.environ.get("FORAGE_TEST_PRICE_LOGS", "20"))
VISITS = 10_000
COVERED = 0.95 * LOGS
"""Of the logs. Intervals hold for all rules together and at all times, so that most miss far less
than one in 20."""
MEASURES = [0.2, 0.05]


def definition(shop: Zooplus, measure: float) -> dict[str, Any]:
    """The shop without its last products, under a cap, a floor of new ones and two of segments."""
    own = shop.definition(["auto"])
    first = dict(list(own["arms"].items())[:-NEW])
    return {**own, "arms": first, "rules": {**RULES, "measure": measure}}


def costs_of(state: State, decision: Decision, rates: Array) -> list[float]:
    """Return what each rule costs in a decision, in the state that made it: the clicks without it
    less those with it, the others as they were. rates: (K,) of clicks."""
    context, learner = state.schema.encode_context(decision.context), state.learners["auto"]
    known = dict[frozenset[str], Array]()

    def chances(off: frozenset[str]) -> Array:
        if off not in known:
            names = tuple([name for name in RULES if name in off])
            found = state.rule(
                state.candidates, Situation(decision.context, decision.at, off=names)
            )
            facts = decision.facts
            known[off], _ = decide(
                Decider.serving(learner), context, found.candidates, 1, 0, facts, found.limits
            )
        return known[off]

    off = frozenset(decision.facts.off)
    assert chances(off) == pytest.approx(np.array(decision.probabilities), abs=1e-6)
    return [float((chances(off | {name}) - chances(off - {name})) @ rates) for name in RULES]


def prices(measure: float, seed: int) -> tuple[RulePrices, Array]:
    """Return the prices of a log, and what each rule costs in truth, over what counts."""
    store, shop = MemoryStore(), Zooplus(seed)
    stream, users, costs = shop.stream(seed), list[int](), list[list[float]]()

    async def visit(services: Services, number: int) -> None:
        each, arms = stream.visit(number), state_of(services).candidates.ids
        request = SelectRequest(**shop.request(each), experiment="shop", unit=f"user {each.user}")
        answer = await services.selector.select(request)
        rates = np.array([shop.click_probability(each.user, arm) for arm in arms])
        costs.append(costs_of(state_of(services), answer.decision, rates))
        users.append(each.user)
        click = shop.outcome(each, [answer.decision.shown[0].arm]).clicks
        await services.settlements.reward(RewardRequest(answer.token, reward=click))

    async def play(services: Services) -> None:
        await define(services, definition(shop, measure))
        arms = list(shop.definition(["auto"])["arms"].items())
        await services.admin.upsert_arms(state_of(services), dict(arms[-NEW:]), "")
        for number in range(VISITS):
            await visit(services, number)

    run_virtual(live(store, play, rng=Random(f"services {seed}")))
    found = run_virtual(prices_of(store, "shop"))
    return found, np.array(costs)[counted(np.array(users))].mean(axis=0)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_price_of_each_rule_lies_in_its_interval(measure: float) -> None:
    covered = dict.fromkeys(RULES, 0)
    for seed in range(LOGS):
        found, truth = prices(measure, seed)
        for rule, own in zip(found.rules, truth, strict=True):
            assert rule.price is not None
            low, high = rule.price.interval
            covered[rule.name] += low <= own <= high
            print(f"{seed:>2} {rule.name:<7} {own:+.5f} in [{low:+.4f}, {high:+.4f}] {rule.state}")  # noqa: T201
    print(measure, covered)  # noqa: T201
    assert min(covered.values()) >= COVERED
