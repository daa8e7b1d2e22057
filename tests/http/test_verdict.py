"""GET /experiments/{name}/verdict: from another process, and remembered for a while."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from service.analysis.request import EvaluationRequest
from service.analysis.running import EvaluationWorker, LogQuestion
from service.analysis.verdicts import Verdicts
from service.clock import Clock, iso
from service.definition.experiment import Definition, load_definition
from service.errors import Invalid
from service.log.log import Log
from service.state.fold import State
from service.telemetry.metrics import Telemetry
from tests.support.clock import SetClock, run_virtual
from tests.support.evaluated import NOTHING_TOLD
from tests.support.service import SHOP, Json, Wire, expect_problem, serving

PATH = "/experiments/shop/verdict"
CONTROLLED: Json = {
    "policies": {"linucb": {"kind": "linucb"}, "random": {"kind": "random"}},
    "control": "random",
}


def controlled() -> Json:
    definition = load_definition(SHOP)[1].model_dump(mode="json", exclude_unset=True)
    return {**definition, **CONTROLLED}


def state_with(control: str | None = "any") -> State:
    state, policies = State("shop"), {"any": {"kind": "random"}}
    state.definition = Definition.model_validate({"policies": policies, "control": control})
    return state


@pytest.mark.process
def test_a_verdict_is_told_once_there_are_outcomes(tmp_path: Path) -> None:
    """It is remembered, but for a change of the experiment."""
    with serving(store=f"sqlite:///{tmp_path}/forage.db") as wire:
        assert wire.get(PATH).json()["sentence"].startswith("Nothing can be told: the experiment")
        assert wire.put("/experiments/shop", controlled()).status_code == 200
        for number in range(120):
            decision = wire.select(unit=f"unit-{number}")
            wire.reward(decision, float(decision["arm"] != "kibble"))
        found = wire.get(PATH).json()
        assert (found["control"], found["decisions"]) == ("random", 120)
        assert found["state"] in ("better", "open")
        assert {each["policy"] for each in found["policies"]} == {"linucb", "random"}
        wire.reward(wire.select(unit="unit-0"), 1.0)
        assert wire.get(PATH).json() == found
        wire.put("/experiments/shop/policies/linucb/share", {"share": 2.0})
        assert wire.get(PATH).json()["decisions"] == 121


def test_a_verdict_is_kept_for_ten_times_as_long_as_it_took() -> None:
    """And for ten seconds at least."""

    class Hand(Clock):
        now = takes = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, asked = Hand(), list[str]()

    class Slow:
        async def run(self, experiment: str, asks: LogQuestion) -> bytes:
            asked.append(experiment)
            clock.now += clock.takes
            return json.dumps({"number": len(asked), "fits": len(asked) > 1}).encode()

    telemetry = Telemetry(clock)
    worker = cast(EvaluationWorker, Slow())
    verdicts = Verdicts(worker, worker, cast(Log, None), telemetry)
    state = state_with()

    def number() -> object:
        return json.loads(run_virtual(verdicts.of(state)))["number"]

    for clock.takes, kept in ((0.1, 10.0), (30.0, 300.0)):
        before = len(asked)
        assert number() == number() == before + 1
        clock.now += kept - 0.1
        assert number() == before + 1
        assert telemetry.mismatched == {"shop": before == 0}
        clock.now += 0.2
    assert number() == 3


def test_a_verdict_says_when_it_was_made_and_when_the_next_one_may_be() -> None:
    """It took 30 seconds, so it is kept for 300; without a control, until a new definition."""
    clock = SetClock()

    class Slow:
        async def run(self, experiment: str, asks: LogQuestion) -> bytes:
            clock.skip(30.0)
            return b'{"fits":true}'

    worker = cast(EvaluationWorker, Slow())
    verdicts = Verdicts(worker, worker, cast(Log, None), Telemetry(clock))
    began = clock.time()
    first = run_virtual(verdicts.of(state_with()))
    dates = {"as_of": iso(began), "next_at": iso(began + 330)}
    assert json.loads(first) == {"fits": True, **dates}
    clock.skip(200.0)
    assert run_virtual(verdicts.of(state_with())) == first
    verdicts = Verdicts(worker, worker, cast(Log, None), Telemetry(clock))
    told = json.loads(run_virtual(verdicts.of(state_with(control=None))))
    assert told["next_at"] is None


def test_without_a_control_or_a_shadow_an_answer_is_kept_until_the_definition_changes() -> None:
    """A console asks every ten seconds, and each answer would take a process."""
    asked = list[EvaluationRequest | LogQuestion]()

    class Refusing:
        async def run(self, experiment: str, asks: EvaluationRequest | LogQuestion) -> bytes:
            asked.append(asks)
            return b'{"fits":true}'

    clock, state = SetClock(), state_with(control=None)
    worker = cast(EvaluationWorker, Refusing())
    verdicts = Verdicts(worker, worker, cast(Log, None), Telemetry(clock))
    for revision in (0, 0, 1):
        state.revision = revision
        run_virtual(verdicts.of(state))
        run_virtual(verdicts.shadows(state))
        clock.skip(1e6)
    shadows = EvaluationRequest("shop", shadows=True)
    assert asked == ["verdict", shadows, "verdict", shadows]


def test_the_value_of_a_challenger_is_kept_for_a_while_for_each_pair() -> None:
    asked = list[Sequence[str] | None]()

    class Answering:
        async def run(self, experiment: str, asks: EvaluationRequest) -> bytes:
            asked.append(asks.policies)
            return json.dumps(NOTHING_TOLD).encode()

    clock, state = SetClock(), state_with()
    worker = cast(EvaluationWorker, Answering())
    verdicts = Verdicts(worker, worker, cast(Log, None), Telemetry(clock))
    for pair in ("ab", "ab", "cb"):
        request = EvaluationRequest("shop", policies=[*pair], against=pair[1])
        run_virtual(verdicts.compared(state, request))
    run_virtual(verdicts.shadows(state))
    assert asked == [["a", "b"], ["c", "b"], None]
    clock.skip(60.0)
    assert run_virtual(verdicts.compared(state, request)).experiment == "shop"
    assert len(asked) == 4


def test_a_log_that_takes_too_long_to_read_is_not_read_again_at_once() -> None:
    """A console asks every ten seconds, and each answer would take two minutes."""
    asked = 0

    class Slow:
        async def run(self, experiment: str, asks: EvaluationRequest | LogQuestion) -> bytes:
            nonlocal asked
            asked += 1
            clock.skip(120.0)
            raise Invalid("took longer than 120 seconds")

    clock, state = SetClock(), state_with()
    worker = cast(EvaluationWorker, Slow())
    verdicts = Verdicts(worker, worker, cast(Log, None), Telemetry(clock))
    for seconds, reads in ((0.0, 1), (1_190.0, 1), (20.0, 2)):
        clock.skip(seconds)
        with pytest.raises(Invalid, match="longer than 120 seconds"):
            run_virtual(verdicts.of(state))
        assert asked == reads


def test_a_crash_does_not_end_the_verdicts_that_nobody_asks_for() -> None:
    asked = 0

    class Crashing:
        async def run(self, experiment: str, asks: EvaluationRequest | LogQuestion) -> bytes:
            nonlocal asked
            asked += 1
            raise RuntimeError("an evaluation failed")

    state = state_with()
    log = SimpleNamespace(
        replicas=SimpleNamespace(states={"shop": state}), presence=SimpleNamespace(leads=True)
    )
    worker = cast(EvaluationWorker, Crashing())
    verdicts = Verdicts(worker, worker, cast(Log, log), Telemetry(SetClock()))

    async def hours() -> None:
        task = asyncio.create_task(verdicts.run())
        await asyncio.sleep(3.5 * 3_600)
        task.cancel()

    run_virtual(hours())
    assert asked == 3


def test_a_log_that_no_other_process_can_read_has_no_verdict() -> None:
    with serving() as wire:
        problem = expect_problem(wire.get(PATH), 422)
        assert "memory://" in problem["detail"]
        expect_problem(wire.get("/experiments/mall/verdict"), 404)


def test_a_control_has_to_be_a_policy() -> None:
    def put(wire: Wire, control: str) -> str:
        answer = wire.put("/experiments/shop", {**controlled(), "control": control})
        return str(expect_problem(answer, 422)["errors"][0]["message"])

    with serving() as wire:
        assert "no policy 'randon'; did you mean 'random'?" in put(wire, "randon")
