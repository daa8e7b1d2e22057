"""The figures, remarks and limits of a load test."""

from typing import Any

import pytest

from simulator_client.load import Plan, Tally, histogram, record
from simulator_client.load_requests import Requests
from simulator_client.load_summary import (
    errors_in_words,
    facts,
    latency_ms,
    missed,
    rows,
    summary,
)

FEATURES = {"basket": {"type": "numeric"}}


def tally(selects: int = 400, *, core: float = 0.2, late_ms: float = 0.0) -> Tally:
    """Count selects that took 1, 2, 3, ... ms, evenly over four seconds."""
    found = Tally(core=core, counted_s=4.0)
    for number in range(selects):
        record(found.latencies["select"], (number + 1) / 1e3)
        record(found.late, late_ms / 1e3)
        found.seconds["select"][1 + number * 4 // selects] += 1
    found.answered["select"] = selects
    return found


def figures(counted: Tally | None = None, *, features: Any = FEATURES, **asked: Any) -> Any:
    definition = {"features": {"context": features}, "arms": {}}
    fields = {"rate": 100.0, "warmup_s": 1.0, "seconds": 4.0} | asked
    plan = Plan(origins=[], requests=Requests("http://a", definition, {}), **fields)
    return summary(
        plan, counted or tally(), urls=["http://a"], experiment="shop", policy="linucb", arms=True
    )


def test_figures_by_hand() -> None:
    """400 selects in 4 s, which took 1 to 400 ms."""
    found = figures()
    assert found["rate_reached"] == 100.0
    told = found["latency_ms"]["select"]
    assert told["mean"] == pytest.approx(200.5, rel=2e-3)
    assert told["p50"] == pytest.approx(200.0, rel=2e-3)
    assert told["p99"] == pytest.approx(396.0, rel=2e-3)
    assert told["max"] == pytest.approx(400.0, rel=2e-3)
    assert found["latency_ms"]["reward"]["count"] == 0
    assert found["throughput"]["select"] == [0, 100, 100, 100, 100]
    assert found["remarks"] == []
    assert [row[:2] for row in rows(found)] == [["", "answers/s"], ["POST /select", "100"]]


def test_without_a_latency_nothing_is_known() -> None:
    assert latency_ms(histogram()) == {
        "count": 0, "mean": None, "p50": None, "p90": None, "p99": None, "p99_9": None, "max": None,
    }  # fmt: skip


def test_latencies_are_bounded_by_a_microsecond_and_an_hour() -> None:
    latencies = histogram()
    for seconds in (-1.0, 0.0, 7_200.0):
        record(latencies, seconds)
    told = latency_ms(latencies)
    assert told["count"] == 3
    assert told["p50"] == 0.001
    assert told["max"] == pytest.approx(3_600_000.0, rel=2e-3)


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        (tally(core=0.93), ["The client was the bottleneck: it used 93% of a core."]),
        (tally(late_ms=3.0), ["The client itself was late, by 3"]),
        (tally(core=0.95, late_ms=9.0), ["The client was the bottleneck"]),
        (tally(300), ["The rate was not reached: 75 of 100 selects per second"]),
        (tally(0), ["The rate was not reached", "The service answered nothing."]),
    ],
)
def test_remarks_explain_the_figures(counted: Tally, said: list[str]) -> None:
    found = figures(counted)["remarks"]
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_limits() -> None:
    found = figures()
    assert missed(found, None, None) == []
    assert missed(found, 397.0, 0) == []
    assert missed(found, 395.0, 0) == ["p99 of selects is 396.031 ms, above 395"]
    assert missed(figures(tally(0)), None, None) == ["the service answered nothing"]
    counted = tally()
    counted.errors["select", "503"] = 3
    counted.errors["reward", "timeout"] = 1
    found = figures(counted)
    assert missed(found, None, 4) == []
    assert missed(found, None, 3) == ["4 errors, more than 3"]
    assert errors_in_words(found) == "Errors: 3 selects 503, 1 rewards timeout."
    assert [row[-1] for row in rows(found)] == ["errors", "3", "1"]


def test_facts_name_the_requests_and_their_rate() -> None:
    assert facts(figures()) == (
        "Experiment shop, policy linucb, all arms listed, fresh contexts, 0.2 rewards per select: "
        "100 selects due per second, for 4 s after a warm-up of 1 s."
    )
    told = facts(figures(features={}, rate=None, rewards_alone=True))
    assert "repeated contexts, rewards alone: as fast as 64 connections go" in told
