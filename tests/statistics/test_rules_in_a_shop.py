"""The pet shop under rules: what a policy loses to the best that the rules allow."""

from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from service.decide.scoring import decide
from service.definition.experiment import Definition
from service.state.decider import Decider
from service.state.events import ArmUpserted, ExperimentDefined, Outcome, Rewarded
from service.state.fold import State
from service.state.rulebook import Situation
from simulator_client.worlds.zooplus import CATEGORIES, CLICK_CHANCE, PERSONAS

pytestmark = [pytest.mark.statistics, pytest.mark.timeout(600)]

VISITS, SEEDS, NEW = 10_000, 5, 5
LOST = 0.06
"""Regret, as a share of uniform choice's."""
OPENS = 1_700_000_000.0

RULES = {
    "varied": {"cap": {"of": "category", "share": 0.3}},
    "fresh": {"floor": {"of": "new", "younger_than": "7d", "share": 0.08}},
    "fish": {
        "floor": {
            "of": "category",
            "is": "Fish Supplies",
            "share": 0.15,
            "if": "persona == 'cat_connoisseur'",
        }
    },
    "toys": {
        "floor": {
            "of": "category",
            "is": "Cat Toy",
            "share": 0.1,
            "if": "persona == 'fish_hobbyist'",
        }
    },
}
FLOORS = {"cat_connoisseur": ("Fish Supplies", 0.15), "fish_hobbyist": ("Cat Toy", 0.1)}
SHOP = [CATEGORIES[number % len(CATEGORIES)] for number in range(50)]
"""Category of each product; the last ones are new."""


def opened() -> State:
    definition = Definition.model_validate(
        {
            "features": {
                "context": {"persona": {"type": "categorical", "values": [*PERSONAS]}},
                "arm": {"category": {"type": "categorical", "values": [*CATEGORIES]}},
            },
            "arms": {f"{n:02}": {"category": SHOP[n]} for n in range(len(SHOP) - NEW)},
            "policies": {"auto": {"kind": "auto"}},
            "rules": RULES,
        }
    ).completed()
    state = State("shop")
    written = definition.model_dump(mode="json")
    defined = ExperimentDefined(at=0.0, revision=1, schema_version=1, definition=written)
    state.apply(1, defined)
    for number in range(len(SHOP) - NEW, len(SHOP)):
        arm = ArmUpserted(at=OPENS, arm=f"{number:02}", features={"category": SHOP[number]})
        state.apply(state.position + 1, arm)
    return state


def best_value(persona: str, rates: np.ndarray) -> float:
    """The most clicks a visit that the rules allow."""
    rows = [[float(each == category) for each in SHOP] for category in CATEGORIES]
    limits = [0.3] * len(rows)
    rows.append([-float(number >= len(SHOP) - NEW) for number in range(len(SHOP))])
    limits.append(-0.08)
    if persona in FLOORS:
        category, share = FLOORS[persona]
        rows.append([-float(each == category) for each in SHOP])
        limits.append(-share)
    ones = np.ones((1, len(SHOP)))
    found = linprog(-rates, A_ub=rows, b_ub=limits, A_eq=ones, b_eq=[1.0])
    return -float(found.fun)


def regret(seed: int) -> float:
    """As a share of that of uniform choice; by the chances of each visit, not by its clicks."""
    rng, state = Random(seed), opened()
    rates = {
        persona: np.array([CLICK_CHANCE[persona][category] for category in SHOP])
        for persona in PERSONAS
    }
    best = {persona: best_value(persona, rates[persona]) for persona in PERSONAS}
    learner, lost, uniform = state.learners["auto"], 0.0, 0.0
    for visit in range(VISITS):
        persona, at = rng.choice(PERSONAS), OPENS + visit
        found = state.rule(state.candidates, Situation({"persona": persona}, at))
        context = state.schema.encode_context({"persona": persona})
        facts = Decider.serving(learner).facts(found.candidates)
        p, slate = decide(
            Decider.serving(learner),
            context,
            found.candidates,
            1,
            rng.getrandbits(63),
            facts,
            found.limits,
        )
        assert slate.relaxed == ()
        lost += best[persona] - float(p.dot(rates[persona]))
        uniform += best[persona] - float(rates[persona].mean())
        [arm] = slate.arms
        click = float(rng.random() < rates[persona][arm])
        row = state.schema.row(context, found.candidates.x[arm])
        settled = [Outcome(arm=found.candidates.ids[arm], row=row, reward=click)]
        event = Rewarded(
            at=at, decision=f"{visit}", policy="auto", schema_version=1, settled=settled
        )
        state.apply(state.position + 1, event)
    return lost / uniform


def test_auto_loses_little_to_the_best_that_the_rules_allow() -> None:
    found = [regret(seed) for seed in range(SEEDS)]
    assert np.mean(found) < LOST, found
