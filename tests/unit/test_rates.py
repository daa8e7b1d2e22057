"""Rates: a window that slides, told when to come again, in a memory that is bounded."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.security import rates
from service.security.rates import Rate, Rates
from tests.support.clock import FixedClock


def test_a_rate_is_an_amount_for_a_span_of_time() -> None:
    assert Rate.parse("100/second") == Rate(100, 1)
    assert Rate.parse(" 5000 per  2 Hours ") == Rate(5_000, 7_200)
    for text in ("3/minute", "5000 per 2 hours", "7/day", "10 per 90 seconds"):
        assert str(Rate.parse(text)) == text
    assert str(Rate.parse("10 per 24 hours")) == "10/day"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("often", "units: second, minute, hour, day"),
        ("5/second; 3/minute", "is no rate"),
        ("1/fortnight", "is no rate"),
        ("1perhour", "is no rate"),
        ("٣/second", "is no rate"),
        ("9999999999/second", "is no rate"),
        ("0/second", "lets one request through"),
        ("1/0 seconds", "lets one request through"),
    ],
)
def test_what_is_no_rate_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rate.parse(text)


@pytest.fixture(params=[0.0, 600.0, 6e9])
def clock(request: pytest.FixtureRequest) -> FixedClock:
    """Of a host that was booted just now, minutes ago, or long ago."""
    return FixedClock(request.param)


def test_a_rate_lets_so_much_through_and_the_rest_once_time_has_passed(clock: FixedClock) -> None:
    counted, rate = Rates(clock), Rate.parse("10/minute")

    def hit(cost: int) -> int:
        return counted.hit("key", rate, ("a", ""), cost)

    assert [hit(3) for _ in range(4)] == [0, 0, 0, 67]
    assert {hit(2) for _ in range(100)} == {61}  # a refused cost is not counted
    assert hit(1) == 0
    assert hit(11) == 60  # more than the whole rate
    clock.at += 60 + 6  # of the 10 a tenth has slid out
    assert hit(1) == 0
    assert hit(1) > 0


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 10)), max_size=30),
    st.integers(1, 10),
)
@example([(0.0, 1), (1.0, 1)], 9)
@example([(0.0, 1), (0.0, 1), (3.0, 1)], 8)
def test_who_waits_as_long_as_he_is_told_passes(asked: list[tuple[float, int]], cost: int) -> None:
    clock, rate = FixedClock(1e6), Rate.parse("10/minute")
    counted = Rates(clock)
    for wait, each in asked:
        clock.at += wait
        counted.hit("key", rate, ("a", ""), each)
    wait = counted.hit("key", rate, ("a", ""), cost)
    clock.at += wait
    assert wait == 0 or counted.hit("key", rate, ("a", ""), cost) == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 10)), max_size=60))
def test_no_window_holds_more_than_the_rate_and_a_half(asked: list[tuple[float, int]]) -> None:
    """What was counted in the window before is taken to be spread evenly over it."""
    clock, rate, passed = FixedClock(1e6), Rate.parse("10/minute"), list[tuple[float, int]]()
    counted = Rates(clock)
    for wait, each in asked:
        clock.at += wait
        if counted.hit("key", rate, ("a", ""), each) == 0:
            passed.append((clock.at, each))
    for start, _ in passed:
        assert sum(cost for at, cost in passed if start <= at < start + 60) <= 20


def test_each_is_counted_by_himself(clock: FixedClock) -> None:
    counted, rate = Rates(clock), Rate.parse("1/minute")
    for kind in ("address", "unit"):
        for who in (("a", "x"), ("a", "y"), ("b", "x")):
            assert counted.hit(kind, rate, who, 1) == 0
            assert counted.hit(kind, rate, who, 1) > 0


def test_a_million_addresses_leave_a_bounded_memory(
    clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the first share counters: each is still let through while few ask."""
    monkeypatch.setattr(rates, "MOST_CALLERS", 1_000)
    monkeypatch.setattr(rates, "SHARED_COUNTERS", 50)
    counted, rate = Rates(clock), Rate.parse("3000/minute")
    for number in range(20_000):
        assert counted.hit("address", rate, ("key", str(number)), 1) == 0
    assert counted.counters <= 1_050
    clock.at += 60
    for number in range(20_000, 40_000):
        counted.hit("address", rate, ("key", str(number)), 1)
    assert counted.counters <= 2_100
    clock.at += 600
    counted.hit("address", rate, ("key", "one"), 1)
    assert counted.counters == 1


def test_each_worker_lets_its_part_of_a_rate_through(clock: FixedClock) -> None:
    rates = Rates(clock, workers=3)
    rate = Rate(10, 60)
    waits = [rates.hit("key", rate, ("k", ""), 1) for _ in range(5)]
    assert waits[:4] == [0, 0, 0, 0]  # a third, rounded up
    assert waits[4] > 0


def test_a_cost_above_the_part_of_a_worker_is_let_through_alone(clock: FixedClock) -> None:
    rates, rate = Rates(clock, workers=4), Rate(100, 60)
    assert rates.hit("key", rate, ("k", ""), 101) == 60  # above the whole rate
    assert rates.hit("key", rate, ("k", ""), 100) == 0
    wait = rates.hit("key", rate, ("k", ""), 1)
    assert wait > 0
    clock.at += wait
    assert rates.hit("key", rate, ("k", ""), 1) == 0
