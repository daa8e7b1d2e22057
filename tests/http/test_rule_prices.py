"""GET /experiments/{name}/rules: what each rule does and costs, from another process."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from service.analysis.running import EvaluationWorker, LogQuestion
from service.analysis.verdicts import Verdicts
from service.clock import iso
from service.definition.experiment import Definition
from service.log.log import Log
from service.state.fold import State
from service.telemetry.metrics import Telemetry
from tests.support.clock import SetClock, run_virtual
from tests.support.service import expect_problem, serving

PATH = "/experiments/shop/rules"
VARIED = {"varied": {"cap": {"of": "arm", "share": 0.5}}}


def state_with(**rules: Any) -> State:
    state, policies = State("shop"), {"any": {"kind": "random"}}
    state.definition = Definition.model_validate({"policies": policies, "rules": rules})
    return state


@pytest.mark.process
def test_prices_are_told_once_there_are_outcomes(tmp_path: Path) -> None:
    """They are remembered, but for a change of the experiment."""
    with serving(store=f"sqlite:///{tmp_path}/forage.db") as wire:
        wire.redefine(rules={**VARIED, "measure": 0.5})
        [rule] = wire.get(PATH).json()["rules"]
        assert (rule["name"], rule["verb"], rule["holds"], rule["measured"]) == (
            "varied", "cap", True, True,
        )  # fmt: skip
        assert rule["price"] is None
        for number in range(200):
            decision = wire.select(unit=f"unit-{number}")
            wire.reward(decision, float(decision["arm"] == "kibble"))
        wire.redefine(rules={**VARIED, "measure": 0.5}, control="linucb")
        found = wire.get(PATH).json()
        [rule] = found["rules"]
        assert rule["price"]["decisions"] == 200
        assert rule["state"] in ("open", "costs", "earns")
        assert found["measure"] == 0.5
        wire.reward(wire.select(unit="unit-0"), 1.0)
        assert wire.get(PATH).json() == found


def test_prices_say_when_they_were_made_and_when_the_next_ones_may_be() -> None:
    """They took 30 seconds, so they are kept for 300; where nothing changes, until a definition."""
    clock, asked = SetClock(), list[LogQuestion]()

    class Slow:
        async def run(self, experiment: str, asks: LogQuestion) -> bytes:
            asked.append(asks)
            clock.skip(30.0)
            return b'{"fits":true,"rules":[]}'

    worker = cast(EvaluationWorker, Slow())
    for rules, ends in (
        ({**VARIED, "measure": 0.1}, True),
        ({"advent": {"arm": "ball", "until": "2030-01-01T00:00:00Z"}}, True),
        (VARIED, False),
        ({}, False),
    ):
        verdicts, began = Verdicts(worker, worker, cast(Log, None), Telemetry(clock)), clock.time()
        state = state_with(**rules)
        first = run_virtual(verdicts.rules(state))
        told = json.loads(first)
        next_at = iso(began + 330) if ends else None
        assert (told["rules"], told["as_of"], told["next_at"]) == ([], iso(began), next_at)
        clock.skip(299.0)
        assert run_virtual(verdicts.rules(state)) == first
        clock.skip(2.0)
        assert (run_virtual(verdicts.rules(state)) == first) == (not ends)
        run_virtual(verdicts.of(state))
    rules_of, both = ["rules", "verdict"], ["rules", "rules", "verdict"]
    assert asked == [*both, *both, *rules_of, *rules_of]


def test_a_log_that_no_other_process_can_read_has_no_prices() -> None:
    with serving() as wire:
        problem = expect_problem(wire.get(PATH), 422)
        assert "memory://" in problem["detail"]
        expect_problem(wire.get("/experiments/mall/rules"), 404)


def test_a_rule_that_is_off_is_explained() -> None:
    """Half of the visitors are without it."""
    with serving() as wire:
        wire.redefine(rules={**VARIED, "measure": 0.5})
        sentence = "'varied' is off, to measure what it costs"
        said = [wire.explain(wire.select(unit=f"unit-{number}"))["said"] for number in range(40)]
        assert 8 < sum(sentence in each for each in said) < 32


def test_measure_has_to_be_a_share_of_at_most_half() -> None:
    with serving() as wire:
        definition = {**wire.definition(), "rules": {**VARIED, "measure": 0.6}}
        problem = expect_problem(wire.put("/experiments/shop", definition), 422)
        assert [each["path"] for each in problem["errors"]] == ["rules.measure"]
