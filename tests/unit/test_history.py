"""The past of each policy: a bounded number of samples for each step."""

import math
from typing import Any

import numpy as np
import pytest

from service.telemetry.history import MOST_POLICIES, SAMPLE_COLUMNS, STEPS, History
from service.telemetry.metrics import Telemetry
from tests.unit.folding import Log, shop

LINUCB = {"kind": "linucb", "share": 3.0}
RANDOM = {"kind": "random", "share": 1.0}


def opened(**policies: dict[str, Any]) -> Log:
    log = Log()
    log.define(shop(**policies))
    return log


def column(samples: np.ndarray, name: str) -> list[float]:
    values: list[float] = samples[:, SAMPLE_COLUMNS.index(name)].tolist()
    return values


def test_sums_of_the_fold_and_means_of_the_telemetry_are_written_down() -> None:
    log, telemetry = opened(linucb=LINUCB, random=RANDOM), Telemetry()
    history = History(lambda: {"e": log.state}, telemetry)
    history.sample(1_000.0, telemetry.decision_statistics)
    log.settle("linucb", {"food1": 1.0})
    log.settle("linucb", {"toy1": 0.5})
    telemetry.decided("e", "linucb", 0.25, 1.5, ("id", 0.0, "a", "linucb/0@1", 1, 3, 0.25))
    history.sample(1_005.0, telemetry.decision_statistics)
    samples = history.samples("e", "linucb", 5, 0.0)
    names = ("at", "count", "total", "squares", "decisions", "share", "entropy", "propensity")
    before, after = zip(*(column(samples, name) for name in names), strict=True)
    assert before == pytest.approx((1_000, 0, 0, 0, 0, 0.75, math.nan, math.nan), nan_ok=True)
    assert after == (1_005, 2, 1.5, 1.25, 1, 0.75, 1.5, 0.25)
    assert column(history.samples("e", "linucb", 5, 1_000.0), "at") == [1_005.0]
    assert column(history.samples("e", "random", 5, 0.0), "count") == [0, 0]


def test_each_step_has_one_sample_an_hour_of_the_short_and_a_week_of_the_long() -> None:
    log = opened(random=RANDOM)
    history = History(lambda: {"e": log.state}, Telemetry())
    for second in range(0, 2 * 3_600, 2):
        history.sample(float(second), {})
    short = column(history.samples("e", "random", 5, -1.0), "at")
    assert len(short) == STEPS[5] == 720
    assert [at // 5 for at in short] == list(range(720, 1_440))
    long = column(history.samples("e", "random", 300, -1.0), "at")
    assert long == [300.0 * place for place in range(24)]
    assert STEPS[300] * 300 == 7 * 86_400


def test_a_policy_that_is_gone_has_no_history_and_one_of_its_name_begins_anew() -> None:
    first, second = opened(random=RANDOM), opened(random=RANDOM)
    second.state.reward_sums["random"].begins = 17
    states = {"e": first.state}
    history = History(lambda: states, Telemetry())
    history.sample(5.0, {})
    states["e"] = second.state
    history.sample(10.0, {})
    assert column(history.samples("e", "random", 5, 0.0), "at") == [10.0]
    states.clear()
    history.sample(15.0, {})
    assert len(history.samples("e", "random", 5, 0.0)) == 0


def test_policies_beyond_the_limit_are_passed_over() -> None:
    state = opened(random=RANDOM).state
    history = History(lambda: {f"e{n}": state for n in range(MOST_POLICIES + 1)}, Telemetry())
    history.sample(5.0, {})
    last = [history.samples(f"e{n}", "random", 5, 0.0) for n in (MOST_POLICIES - 1, MOST_POLICIES)]
    assert [len(each) for each in last] == [1, 0]
