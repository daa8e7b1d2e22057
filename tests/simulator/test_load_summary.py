"""What is said of a load test's figures, and how it shows while it runs."""

import io
from typing import Any

import pytest
from rich.console import Console

from simulator_client.load import Load
from simulator_client.load_plan import Plan
from simulator_client.load_progress import LineLoad, LiveLoad, Standing
from simulator_client.load_report import curve, draw
from simulator_client.load_summary import errors_in_words, facts, missed, remarks, rows, summary
from simulator_client.load_tally import Latencies, Tally


def plan(**asked: Any) -> Plan:
    standard: dict[str, Any] = {
        "addresses": [], "selects": [], "numbered": True, "reward_head": "", "rewards": [],
        "connections": 64, "processes": 2, "warmup_s": 1.0, "seconds": 4.0, "rate": 100.0,
        "spacing": "even", "rewards_per_select": 0.2, "rewards_alone": False, "timeout_s": 1.0,
        "seed": 1,
    }  # fmt: skip
    return Plan(**(standard | asked))


def tally(
    selects: int = 400, *, cores: tuple[float, ...] = (0.2, 0.3), late_ms: float = 0.0
) -> Any:
    found = Tally()
    for number in range(selects):
        found.latencies["select"].record((number + 1) / 1e3)
        found.late.record(late_ms / 1e3)
        found.second(1 + number * 4 // selects, "select")
    found.answered["select"] = selects
    found.cores, found.counted_s = list(cores), [4.0] * len(cores)
    return found


def figures(counted: Tally | None = None, **asked: Any) -> dict[str, Any]:
    test = Load(plan(**asked), ("http://a",), "shop", "linucb", 50)
    return summary(test, counted or tally())


def test_figures_by_hand() -> None:
    """400 selects in 4 s, that took 1 to 400 ms."""
    found = figures()
    assert found["rate_reached"] == 100.0
    told = found["latency_ms"]["select"]
    assert told["mean"] == pytest.approx(200.5, rel=2e-3)
    assert told["p50"] == pytest.approx(200.0, rel=2e-3)
    assert told["p99"] == pytest.approx(396.0, rel=2e-3)
    assert told["max"] == 400.0
    assert found["latency_ms"]["reward"]["count"] == 0
    assert found["throughput"]["select"] == [0, 100, 100, 100, 100]
    assert found["remarks"] == []
    assert rows(found)[1] == [
        "POST /select", "100", "200.06", "360.19", "396.03", "400.00", "400.00", "0",
    ]  # fmt: skip
    assert len(rows(found)) == 2, "no reward was sent"


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        (tally(cores=(0.2, 0.93)), "The client was the bottleneck: its busiest process used 93%"),
        (tally(late_ms=3.0), "The client was late by itself, by 3"),
        (tally(300), "The rate was not reached: 75 of 100 selects a second"),
        (tally(0), "Nothing was answered."),
    ],
)
def test_a_reader_is_told_what_to_make_of_them(counted: Tally, said: str) -> None:
    assert any(line.startswith(said) for line in figures(counted)["remarks"])


def test_a_busy_client_is_told_before_a_late_one() -> None:
    said = figures(tally(cores=(0.95,), late_ms=9.0))["remarks"]
    assert len(said) == 1
    assert "bottleneck" in said[0]


def test_rewards_without_decisions_are_told() -> None:
    said = remarks(figures(tally(0), rewards_alone=True, rate=None))
    assert any("no decision to reward" in line for line in said)


def test_limits() -> None:
    found = figures()
    assert missed(found, None, None) == []
    assert missed(found, 397.0, 0) == []
    assert missed(found, 395.0, 0) == ["p99 of selects is 396.031 ms, above 395"]
    counted = tally()
    counted.errors["select", "503"] = 3
    counted.errors["reward", "timeout"] = 1
    found = figures(counted)
    assert missed(found, None, 4) == []
    assert missed(found, None, 3) == ["4 errors, more than 3"]
    assert errors_in_words(found) == "Errors: 3 selects 503, 1 rewards timeout."
    assert [row[-1] for row in rows(found)] == ["errors", "3", "1"]


def test_facts_say_what_was_sent() -> None:
    assert facts(figures()) == (
        "Experiment shop, policy linucb, 50 arms spelled out, a number in each context that never "
        "repeats, 0.2 rewards a select: 100 selects a second due (even), for 4 s after 1 s to "
        "warm up."
    )
    told = facts(figures(rate=None, numbered=False, rewards_alone=True))
    assert "contexts that repeat, rewards alone: as fast as 64 connections go" in told


def test_the_curve_ends_with_all() -> None:
    latencies = Latencies()
    for ms in (1, 1, 2, 4):
        latencies.record(ms / 1e3)
    percents, ms = curve(latencies)
    assert percents.tolist() == [50.0, 75.0, 100.0]
    assert ms.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("counted", [tally(), tally(1), tally(0)])
def test_pictures_are_drawn_of_much_and_of_nothing(counted: Tally) -> None:
    drawn = draw(figures(counted), counted)
    assert all(picture.startswith(b"\x89PNG") for picture in drawn.values())


def test_progress_adds_up_over_processes() -> None:
    standing = Standing()
    assert standing.words() == (0.0, "0 answers/s, 0 errors")
    for index in (0, 1):
        standing.take(index, {"at_s": 2.0, "answered": 600, "errors": 1, "waiting": 4})
    assert standing.words() == (2.0, "600 answers/s, 2 errors, 8 wait to be sent")
    standing.take(0, {"at_s": 3.0, "answered": 900, "errors": 1, "waiting": 0})
    assert standing.words()[1] == "300 answers/s, 2 errors, 4 wait to be sent"


def test_boards_show_it() -> None:
    lines = io.StringIO()
    board = LineLoad(10.0, 2.0, lines)
    board._next_at = 0.0
    with board:
        board.show(1.0, "5 answers/s")
    assert lines.getvalue() == "1/10 s (warms up) 5 answers/s\n"
    screen = io.StringIO()
    with LiveLoad(10.0, 2.0, Console(file=screen, force_terminal=True, width=100)) as live:
        live.show(7.0, "9 answers/s")
    assert "7/10 s 9 answers/s" in screen.getvalue()
