"""What a policy would have earned on the log, before its rollout."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from service.analysis.evaluation_answer import EvaluationAnswer
from service.errors import Busy, ProcessEnded
from service.log.stores.memory import MemoryStore
from service.manage.rollouts import FORECAST_VALUE_SECONDS, START_VALUE_SECONDS
from service.state.fold import State
from service.state.rollout import RolloutPlan
from tests.support.clock import VirtualClock
from tests.support.service import SECRET, Json, Wire, expect_problem, serving
from tests.unit.folding import shop

EXPERIMENT = "/experiments/shop"
FORECAST, ROLLOUTS = f"{EXPERIMENT}/forecast", f"{EXPERIMENT}/rollouts"
PLAN = {"policy": "new", "baseline": "main", "margin": 0.1}
CHANCE: Json = {"kind": "random"}
LEARNER: Json = {"kind": "linucb", "epsilon": 0.3}


@pytest.fixture
def wire(store: MemoryStore, clock: VirtualClock) -> Iterator[Wire]:
    with serving(store, clock=clock, token_keys=[SECRET]) as wire:
        yield wire


def define(wire: Wire, main: Json, **more: Json) -> None:
    reward = {"range": [0, 1], "wait_seconds": 60}
    body = {**shop(main=main, **more), "reward": reward}
    answer = wire.put(f"{EXPERIMENT}?replace=true", body)
    assert answer.is_success, answer.text


def visits(wire: Wire, count: int = 150) -> None:
    """Cats like toys, and nothing else."""
    for _ in range(count):
        decision = wire.select(context={"pet": "cat"}, experiment="shop")
        wire.reward(decision, float(decision["arm"].startswith("toy")))


def valued(wire: Wire) -> Json:
    answer = wire.post(FORECAST, PLAN)
    assert answer.status_code == 200, answer.text
    value: Json = answer.json()["value"]
    return value


def test_a_challenger_that_would_have_lost_is_told_of_and_warned_of(wire: Wire) -> None:
    define(wire, LEARNER, new={**CHANCE, "share": 0.0})
    visits(wire)
    found = valued(wire)
    assert (found["loses"], found["decisions"], found["support"]) == (True, 150, 1)
    low, high = found["interval"]
    assert low <= found["value"] <= high < found["baseline_interval"][0]
    assert low < 1 / 3 < high
    assert found["difference"] == pytest.approx(found["value"] - found["baseline_value"])
    least, most = found["difference_interval"]
    assert least < found["difference"] < most < -0.1 * found["baseline_value"]
    assert 50 <= found["effective_sample_size"] <= 150
    assert found["sentence"].startswith("On the log, 'new' would have earned 0.")
    assert found["sentence"].endswith("): the loss is beyond the margin of 10 percent.")
    begun = wire.post(ROLLOUTS, PLAN)
    assert (begun.status_code, begun.json()["warning"]) == (201, found["sentence"])
    assert wire.get(f"{ROLLOUTS}/new").json()["warning"] is None


def test_a_challenger_that_would_have_earned_more_is_told_of_and_not_warned_of(wire: Wire) -> None:
    define(wire, CHANCE, new={**LEARNER, "learns_from": "all", "share": 0.0})
    visits(wire, 300)
    found = valued(wire)
    assert not found["loses"]
    assert found["interval"][0] > found["baseline_interval"][1]
    assert "a loss beyond the margin of 10 percent is ruled out." in found["sentence"]
    assert wire.post(ROLLOUTS, PLAN).json()["warning"] is None


def test_what_a_few_decisions_leave_open_is_said(wire: Wire) -> None:
    define(wire, CHANCE, new={**CHANCE, "share": 0.0, "epsilon": 0.1})
    visits(wire, 80)
    found = valued(wire)
    assert found["sentence"].endswith(
        "whether the loss is within the margin of 10 percent cannot be told."
    )
    assert found["difference"] == pytest.approx(0)
    least, most = found["difference_interval"]
    assert least < 0 < most


@pytest.mark.parametrize(
    ("main", "new", "count", "says"),
    [
        (
            CHANCE,
            CHANCE,
            0,
            "no decision was made and settled since 'new' and 'main' are as they are.",
        ),
        (CHANCE, CHANCE, 20, "tells as much of it as 20 decisions of its own would"),
        (CHANCE, LEARNER, 60, "let it learn as a shadow first (`shadow = true`)."),
        ({"kind": "greedy"}, CHANCE, 60, "had no chance of being shown in the log"),
    ],
)
def test_why_the_log_cannot_tell_is_said(
    wire: Wire, main: Json, new: Json, count: int, says: str
) -> None:
    """The forecast and the start are there all the same."""
    define(wire, main, new={**new, "share": 0.0})
    visits(wire, count)
    body = wire.post(FORECAST, PLAN).json()
    found = body["value"]
    assert found["sentence"].startswith("The log cannot tell what 'new' would have earned: ")
    assert says in found["sentence"]
    assert (found["value"], found["difference"], found["loses"]) == (None, None, False)
    assert (found["support"] is None) == (count == 0)
    assert (body["forecast"] is None) == (count == 0)
    begun = wire.post(ROLLOUTS, PLAN)
    assert (begun.status_code, begun.json()["warning"]) == (201, None)


def test_a_policy_that_was_a_shadow_is_valued_over_that_time_with_what_it_learned(
    wire: Wire,
) -> None:
    define(wire, CHANCE)
    visits(wire, 30)
    define(wire, CHANCE, new={**LEARNER, "shadow": True})
    visits(wire, 280)
    define(wire, CHANCE, new={**LEARNER, "share": 0.0})
    visits(wire, 20)
    found = valued(wire)
    assert found["decisions"] == 300
    assert found["interval"][0] > found["baseline_interval"][1]
    wire.post(f"{EXPERIMENT}/policies/new/reset")
    assert "no decision was made" in valued(wire)["sentence"]
    visits(wire, 5)
    assert valued(wire)["decisions"] == 5
    define(wire, CHANCE, new={**LEARNER, "share": 0.0, "epsilon": 0.2})
    assert "no decision was made" in valued(wire)["sentence"]


@pytest.mark.parametrize(
    ("more", "says"), [({}, "it keeps what it learned"), ({"fold": False}, "starts from nothing")]
)
def test_a_shadow_is_made_live_before_its_rollout(wire: Wire, more: Json, says: str) -> None:
    define(wire, CHANCE, new={**LEARNER, "shadow": True, **more})
    for path in (FORECAST, ROLLOUTS):
        detail = expect_problem(wire.post(path, PLAN), 409)["detail"]
        assert "set shadow = false and share = 0 first" in detail
        assert says in detail


def test_a_value_that_takes_too_long_is_there_for_the_next_who_asks(
    wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(wire, LEARNER, new={**CHANCE, "share": 0.0})
    visits(wire)
    rollouts, kept = wire.services.rollouts, list[EvaluationAnswer]()
    compare = rollouts._compare

    async def slow(state: State, plan: RolloutPlan) -> EvaluationAnswer:
        """As `Verdicts` do: computed once, in twice as long as is waited for."""
        if not kept:
            await asyncio.sleep(2 * FORECAST_VALUE_SECONDS)
            kept.append(await compare(state, plan))
        return kept[0]

    monkeypatch.setattr(rollouts, "_compare", slow)
    asked = clock.time()
    assert "takes longer than 20 seconds: ask again in a while." in valued(wire)["sentence"]
    assert clock.time() - asked == pytest.approx(FORECAST_VALUE_SECONDS, abs=1.0)
    wire.sleep(FORECAST_VALUE_SECONDS)
    assert valued(wire)["loses"]
    kept.clear()
    asked = clock.time()
    begun = wire.post(ROLLOUTS, PLAN)
    assert (begun.status_code, begun.json()["warning"]) == (201, None)
    assert clock.time() - asked == pytest.approx(START_VALUE_SECONDS, abs=1.0)


@pytest.mark.parametrize("fault", [Busy("too many wait", 5), ProcessEnded("its process was ended")])
def test_a_value_that_fails_is_no_failure_of_the_forecast(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    define(wire, CHANCE, new={**CHANCE, "share": 0.0})

    async def failing(*_: Any) -> EvaluationAnswer:
        raise fault

    monkeypatch.setattr(wire.services.rollouts, "_compare", failing)
    assert valued(wire)["sentence"].endswith(f"would have earned: {fault}.")
