"""Log time: no wall clock takes it back, and none takes it far ahead."""

import pytest

from service.clock import Clock
from service.log.clock import SLEW, LogClock
from service.state.events import Erased
from service.state.fold import State

NOON = 1_700_000_000.0
HOUR_S = 3_600.0


class Host(Clock):
    """The clocks of a host, which a test moves."""

    def __init__(self, wall: float = NOON) -> None:
        self.wall, self.steady = wall, 0.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def live(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def host() -> Host:
    return Host()


def reached(log_time: float) -> State:
    """A state whose last event is of this time."""
    state = State("shop")
    state.apply(1, Erased(at=log_time, decisions=[], positions=[]))
    return state


def test_it_follows_a_wall_clock_that_goes_as_the_steady_one(host: Host) -> None:
    clock = LogClock(host)
    for seconds in (0.0, 0.001, 5.0, 55 * HOUR_S):  # the last in suspension
        host.live(seconds)
        assert clock.now(State("shop")) == pytest.approx(host.wall, abs=1e-6)


def test_a_jump_ahead_and_back_changes_nothing(host: Host) -> None:
    clock, state = LogClock(host), State("shop")
    host.wall += 55 * HOUR_S
    assert clock.now(state) == NOON
    host.live(60.0)
    assert clock.now(state) == pytest.approx(NOON + 60.0 * (1 + SLEW), abs=1e-6)
    host.wall -= 55 * HOUR_S
    host.live(1.0)
    assert clock.now(state) == pytest.approx(NOON + 61.0, abs=1e-6)


def test_it_never_runs_back_behind_the_log(host: Host) -> None:
    """The first process ran three hours ahead; the second is right, and goes on from the log."""
    clock, state = LogClock(host), reached(NOON + 3 * HOUR_S)
    assert clock.now(state) == NOON + 3 * HOUR_S
    host.wall -= HOUR_S
    host.live(100.0)
    assert clock.now(state) == pytest.approx(NOON + 3 * HOUR_S + 100.0 * (1 - SLEW), abs=1e-6)


def test_a_wall_clock_that_was_wrong_at_the_start_is_followed_back(host: Host) -> None:
    clock = LogClock(host)
    host.wall -= 3 * HOUR_S
    host.live(1.0)
    assert clock.now(State("shop")) == pytest.approx(host.wall, abs=1e-6)


def test_log_time_is_that_of_the_latest_event_and_a_snapshot_keeps_it() -> None:
    state = reached(NOON)
    state.apply(2, Erased(at=NOON - 5.0, decisions=[], positions=[]))
    assert state.log_time == NOON
    assert State.restore(state.snapshot()).log_time == NOON
