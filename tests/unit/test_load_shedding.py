"""Load shedding: a loop that is late all the time has requests refused, a single long turn none."""

import pytest

from service.http.load_shedding import (
    INTERVAL_SECONDS,
    LOOK_SECONDS,
    MOST,
    TARGET_SECONDS,
    LoadShedding,
)
from service.observability.telemetry import Telemetry

LATE = 2 * TARGET_SECONDS


@pytest.fixture
def shedding() -> LoadShedding:
    return LoadShedding(Telemetry())


def watch(shedding: LoadShedding, delays: list[float], start: float = 0.0) -> float:
    """The loop's delay at each look; the time after the last."""
    for number, delay in enumerate(delays, 1):
        shedding.observe(start + number * LOOK_SECONDS, delay)
    return start + len(delays) * LOOK_SECONDS


def refused(shedding: LoadShedding, path: str, requests: int = 100) -> int:
    return sum(shedding.refuses(path) for _ in range(requests))


def test_a_loop_in_time_has_nothing_refused(shedding: LoadShedding) -> None:
    watch(shedding, [0.001] * 100)
    assert refused(shedding, "/select") == 0


def test_one_long_turn_is_no_overload(shedding: LoadShedding) -> None:
    watch(shedding, [0.001] * 20 + [0.5] + [0.001] * 20)
    assert shedding.share == 0


def test_the_share_grows_while_the_loop_is_late_and_some_requests_always_pass(
    shedding: LoadShedding,
) -> None:
    shares = []
    now = 0.0
    for _ in range(40):
        now = watch(shedding, [LATE] * round(INTERVAL_SECONDS / LOOK_SECONDS), now)
        shares.append(shedding.share)
    assert shares == sorted(shares)
    assert shares[-1] == MOST
    assert refused(shedding, "/select") == pytest.approx(100 * MOST, abs=1)


def test_it_ends_once_the_loop_is_in_time_again(shedding: LoadShedding) -> None:
    now = watch(shedding, [LATE] * 100)
    assert shedding.share > 0
    watch(shedding, [0.0] * 300, now)
    assert shedding.share == 0


def test_refusals_are_spread_evenly(shedding: LoadShedding) -> None:
    shedding.share = 0.25
    assert [shedding.refuses("/select") for _ in range(8)] == [False, False, False, True] * 2


def test_rewards_are_refused_once_more_than_half_of_the_decisions_are(
    shedding: LoadShedding,
) -> None:
    shedding.share = 0.5
    assert refused(shedding, "/reward") == 0
    shedding.share = 0.75
    assert refused(shedding, "/reward") == 50


def test_other_routes_are_never_refused(shedding: LoadShedding) -> None:
    shedding.share = MOST
    assert refused(shedding, "/healthz") == refused(shedding, "/experiments") == 0
