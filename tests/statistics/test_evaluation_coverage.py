"""Intervals of off-policy estimates over logs whose truth is known, and how far estimates are off.

The short form takes 100 logs of one world; `make statistics` takes 200 logs of each.
"""

import numpy as np
import pytest

from service.analysis.estimators import estimate
from service.analysis.evaluation_answer import EstimateAnswer
from tests.statistics.logs import WORLDS, log_of

LOGS = 200
CONTRACT = 0.93
NOMINAL = ("snips", "dr")


class Tally:
    """Of estimates against the truth: intervals that held it, and squared errors."""

    def __init__(self) -> None:
        self.hits: dict[str, int] = {}
        self.squares: dict[str, list[float]] = {}

    def add(self, found: dict[str, EstimateAnswer], truth: float) -> None:
        for name, each in found.items():
            self.squares.setdefault(name, []).append((each.value - truth) ** 2)
            low, high = each.interval
            self.hits[name] = self.hits.get(name, 0) + (low <= truth <= high)

    def covered(self, name: str) -> float:
        return self.hits[name] / len(self.squares[name])

    def rmse(self, name: str) -> float:
        return float(np.sqrt(np.mean(self.squares[name])))

    def told(self, title: str) -> str:
        parts = [
            f"{name} {self.rmse(name):.4f} ({self.covered(name):.3f})" for name in self.squares
        ]
        return f"{title}: {', '.join(parts)}"


def tally(world: str, rows: int, logs: int) -> Tally:
    known, found = WORLDS[world], Tally()
    for seed in range(logs):
        log = log_of(known, rows, seed)
        found.add(estimate(log), known.truth)
    return found


def test_intervals_of_100_logs_cover_the_truth_and_dr_is_nearer_to_it_than_ips() -> None:
    """95 percent intervals: at least 87 of 100, which chance misses once in 1,000."""
    found = tally("skewed", 400, 100)
    for name in NOMINAL:
        assert found.covered(name) >= 0.87, found.told("skewed")
    assert found.rmse("dr") <= found.rmse("ips")


@pytest.mark.statistics
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("world", list(WORLDS))
def test_intervals_of_200_logs_cover_at_least_93_percent(world: str) -> None:
    found = tally(world, 1_000, LOGS)
    print(found.told(world))  # noqa: T201
    for name in NOMINAL:
        assert found.covered(name) >= CONTRACT
    assert found.rmse("dr") <= found.rmse("ips")
