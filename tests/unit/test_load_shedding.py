"""Load shedding: a loop that is late all the time has requests refused, a single long turn none."""

import pytest

from service.http.load_shedding import (
    CALM_SECONDS,
    LATE_SECONDS,
    LEAST,
    LOOK_SECONDS,
    LoadShedding,
)
from service.log.commit_gate import CommitGate
from service.observability.telemetry import Telemetry

LATE = 2 * LATE_SECONDS
OTHERS = range(1_000)  # connections: more than requests


class Loop:
    """An event loop whose delays are given."""

    def __init__(self) -> None:
        self.gate = CommitGate(OTHERS)
        self.shedding = LoadShedding(Telemetry(), self.gate)
        self.now = 0.0

    def run(self, seconds: float, delay: float, answers_per_second: float = 0.0) -> None:
        owed = 0.0
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            owed += answers_per_second * LOOK_SECONDS
            for _ in range(int(owed)):
                self.gate.enter()
                self.gate.leave()
            owed -= int(owed)
            self.shedding.observe(self.now, delay)

    def accepted(self, path: str, requests: int = 1_000) -> int:
        """Of requests that arrive at once, and wait."""
        passed = 0
        for _ in range(requests):
            if not self.shedding.refuses(path):
                self.gate.enter()
                passed += 1
        return passed


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_loop_in_time_has_nothing_refused(loop: Loop) -> None:
    loop.run(2.0, delay=0.0005)
    assert loop.accepted("/select") == 1_000


def test_one_long_turn_is_no_overload(loop: Loop) -> None:
    loop.run(0.5, delay=0.0005)
    loop.run(LOOK_SECONDS, delay=0.5)
    loop.run(0.5, delay=0.0005)
    assert loop.accepted("/select") == 1_000


def test_as_many_are_under_way_as_are_answered_in_a_twentieth_of_a_second(loop: Loop) -> None:
    loop.run(5.0, delay=LATE, answers_per_second=4_000)
    assert loop.accepted("/select") == pytest.approx(4_000 / 20, rel=0.05)


def test_some_requests_always_pass(loop: Loop) -> None:
    loop.run(5.0, delay=LATE)
    assert loop.accepted("/select") == LEAST


def test_rewards_have_twice_the_room_of_decisions(loop: Loop) -> None:
    loop.run(5.0, delay=LATE)
    assert loop.accepted("/select") == LEAST
    assert loop.accepted("/reward") == LEAST


def test_an_overload_ends_after_a_calm_time(loop: Loop) -> None:
    loop.run(1.0, delay=LATE)
    loop.run(CALM_SECONDS / 2, delay=0.0)
    assert loop.shedding.overloaded
    loop.run(CALM_SECONDS, delay=0.0)
    assert not loop.shedding.overloaded


def test_other_routes_are_never_refused(loop: Loop) -> None:
    loop.run(1.0, delay=LATE)
    assert loop.accepted("/select") == LEAST
    assert loop.accepted("/healthz") == loop.accepted("/experiments") == 1_000
