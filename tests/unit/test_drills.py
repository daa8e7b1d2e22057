"""The drills' own bookkeeping: what is stated, what is late."""

import pytest

from tests.drills.__main__ import Drill, stated, table
from tests.drills.stand import scaled, seconds


def test_durations_are_read_as_prometheus_writes_them() -> None:
    assert [seconds(text) for text in ("30s", "1m30s", "5m", "1h")] == [30, 90, 300, 3_600]


def test_a_factor_shortens_what_the_rules_wait_and_nothing_else() -> None:
    rules = {
        "groups": [{"rules": [{"alert": "A", "expr": "x > 120", "for": "1m"}, {"alert": "B"}]}]
    }
    [group] = scaled(rules, 0.1)["groups"]
    assert group["rules"] == [{"alert": "A", "expr": "x > 120", "for": "6s"}, {"alert": "B"}]
    whole, shorter = stated(1), stated(0.5)
    assert whole["ForageTrainingOverdue"] == 210  # within 3m30s, for 1m
    assert shorter["ForageTrainingOverdue"] == 180
    assert whole["ForageDecisionsLost"] == shorter["ForageDecisionsLost"] == 30  # waits for nothing


@pytest.mark.parametrize(("measured", "in_time"), [(89.9, True), (90.1, False), (None, False)])
def test_an_alert_that_comes_late_or_never_fails_its_drill(
    measured: float | None, in_time: bool
) -> None:
    drill = Drill("stop Redis", "ForageLogGone", "", 90.0, measured_s=measured)
    assert drill.in_time is in_time
    said = "never" if measured is None else "90"
    assert table([drill]).splitlines()[-1] == f"| stop Redis | ForageLogGone | 90 | {said} |"
