"""Latencies are kept to three digits, and add up over processes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator_client.load_summary import hdr, latency_ms
from simulator_client.load_tally import Latencies, Tally

seconds = st.lists(st.floats(0, 7_200), min_size=1, max_size=200)


def of(values: list[float]) -> Latencies:
    found = Latencies()
    for value in values:
        found.record(value)
    return found


@settings(deadline=None)
@given(seconds)
def test_a_latency_is_kept_to_a_thousandth_of_itself(values: list[float]) -> None:
    kept = [us for us, count in of(values).items() for _ in range(count)]
    for value, us in zip(sorted(min(v, 3_600.0) for v in values), kept, strict=True):
        assert us <= value * 1e6
        assert us >= value * 1e6 * (1 - 1 / 1_024) - 1


@settings(deadline=None)
@given(seconds)
def test_the_histogram_of_the_library_counts_the_same(values: list[float]) -> None:
    latencies = of(values)
    histogram = hdr(latencies)
    assert histogram.get_total_count() == len(values) == len(latencies)
    assert latencies.worst_us == min(int(max(values) * 1e6), 3_600_000_000)


def test_percentiles_of_a_thousand_milliseconds() -> None:
    told = latency_ms(of([number / 1e3 for number in range(1, 1_001)]))
    assert told["count"] == 1_000
    wanted = np.array([500.0, 900.0, 990.0, 999.0])
    found = [told[name] for name in ("p50", "p90", "p99", "p99_9")]
    assert found == pytest.approx(wanted, rel=2e-3)
    assert told["max"] == 1_000.0
    assert told["mean"] == pytest.approx(500.5, rel=2e-3)


def test_of_nothing_nothing_is_known() -> None:
    assert latency_ms(Latencies()) == {
        "count": 0, "mean": None, "p50": None, "p90": None, "p99": None, "p99_9": None, "max": None,
    }  # fmt: skip


def tally(values: list[float], second: int) -> Tally:
    found = Tally()
    for value in values:
        found.latencies["select"].record(value)
        found.second(second, "select")
    found.second(second + 1, "error")
    found.answered["select"] = len(values)
    found.errors["select", "503"] = 1
    found.cores, found.counted_s, found.unlogged = [0.5], [2.0], 3
    return found


@settings(deadline=None)
@given(seconds, seconds)
def test_what_two_processes_counted_adds_up(one: list[float], other: list[float]) -> None:
    both = Tally()
    for part in (tally(one, 0), tally(other, 1)):
        both.add(json.loads(json.dumps(part.as_json())))
    assert both.latencies["select"].counts == of(one + other).counts
    assert both.latencies["select"].worst_us == of(one + other).worst_us
    assert both.answered == {"select": len(one) + len(other), "reward": 0}
    assert both.seconds["select"] == [len(one), len(other), 0]
    assert both.seconds["error"] == [0, 1, 1]
    assert both.errors == {("select", "503"): 2}
    assert (both.cores, both.counted_s, both.unlogged) == ([0.5, 0.5], [2.0, 2.0], 6)
