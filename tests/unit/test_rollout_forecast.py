"""Forecasts of rollouts, in numbers that simulated rollouts show."""

import pytest

from service.analysis.rollout_forecast import RolloutTraffic, rollout_forecast

SHARES = 0.05, 0.2, 0.5


def traffic(per_minute: float, rate: float = 0.2) -> RolloutTraffic:
    variance = rate * (1 - rate)
    return RolloutTraffic(per_minute / 60, (variance, variance), rate, 1.0)


@pytest.mark.parametrize("rate", [0.2, 0.02])
def test_the_first_stage_takes_some_13_variances_by_the_squared_margin(rate: float) -> None:
    found = rollout_forecast(traffic(1_000, rate), SHARES, 0.1).stages[0]
    unit = rate * (1 - rate) / (0.1 * rate) ** 2
    assert found.advance.median / unit == pytest.approx(13, abs=1)
    assert found.stop.median / unit == pytest.approx(11, abs=1)
    assert found.advance.late / unit == pytest.approx(25, abs=1)


def test_much_traffic_waits_for_the_hours_alone() -> None:
    found = rollout_forecast(traffic(1_000), SHARES, 0.1)
    assert found.seconds == pytest.approx(3 * 86_400)
    assert found.stages[0].stop_s < 2 * 3_600
    assert not found.cannot_end


def test_little_traffic_cannot_end_in_time() -> None:
    assert rollout_forecast(traffic(1), SHARES, 0.1).cannot_end
    assert not rollout_forecast(traffic(1), SHARES, 0.1, undecided_after_days=80).cannot_end
    assert rollout_forecast(traffic(0), SHARES, 0.1).cannot_end


def test_a_wider_margin_takes_less() -> None:
    narrow, wide = (rollout_forecast(traffic(1), SHARES, margin) for margin in (0.1, 0.3))
    assert wide.stages[0].advance.median < narrow.stages[0].advance.median / 7
    assert wide.seconds < narrow.seconds


def test_a_baseline_that_earns_nothing_has_no_outcome() -> None:
    found = rollout_forecast(RolloutTraffic(1.0, (0.0, 0.0), 0.0, 1.0), SHARES, 0.1)
    assert found.cannot_end
    assert found.seconds == float("inf")
