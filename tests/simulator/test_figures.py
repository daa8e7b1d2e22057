"""The numbers behind the figures, and looks that tell policies apart."""

import numpy as np
import pytest

from simulator_client.comparison import half_width
from simulator_client.course import moving_mean, recovery_visits
from simulator_client.figures import group_shares
from simulator_client.looks import COLOURS, looks
from simulator_client.summary import table
from simulator_client.worlds.policies import KINDS


def test_moving_mean_and_shares() -> None:
    assert moving_mean(np.arange(4.0)).tolist() == [1.5], "fewer visits than the window: one mean"
    assert moving_mean(np.arange(501.0)).tolist() == [249.5, 250.5]
    assert group_shares(np.array([0, 0, 1, 1]), 3, 2).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_a_window_counts_matched_visits_only() -> None:
    """Of 501 visits the first alone matched: the window that it left has no mean."""
    matched = np.zeros(501, bool)
    matched[0] = True
    means = moving_mean(np.ones(501), matched)
    assert means[0] == 1.0
    assert np.isnan(means[1])


@pytest.mark.parametrize(
    ("low", "recovered"),
    [(0, 500), (26, 501), (100, 575), (10_000, None)],
)
def test_recovery_is_the_end_of_the_first_window_back_at_95_percent(
    low: int, recovered: int | None
) -> None:
    """Zeros, then the oracle's 1.0: a window of 500 is back with at most 25 zeros in it."""
    expected = np.ones(2_000)
    expected[:low] = 0.0
    assert recovery_visits(expected, 1.0) == recovered
    assert recovery_visits(np.ones(499), 1.0) is None, "fewer visits than a window"


def test_the_interval_is_students() -> None:
    """1, 2, 3: deviation 1, error 1/sqrt(3), quantile of t with 2 degrees of freedom 4.3027."""
    assert half_width(np.array([[1.0], [2.0], [3.0]]))[0] == pytest.approx(4.302653 / 3**0.5)
    assert np.isnan(half_width(np.array([[1.0]]))[0]), "one seed: no interval"


def test_a_policy_looks_the_same_in_every_report() -> None:
    assert looks(["linucb", "mine"])["linucb"] == looks(["random", "linucb"])["linucb"]
    every = looks(["linucb", "lints", "mine", "yours"])
    assert len(set(every.values())) == 4


def test_policies_are_told_apart() -> None:
    """Every kind by its colour; within a kind, by dashes or marker."""
    assert len(set(COLOURS.values())) == len(COLOURS) == len(KINDS)
    names = [f"{kind}_{suffix}" for kind, suffixes in KINDS.items() for suffix in suffixes]
    names += [*KINDS, "linucb_change", "linucb_forgetting", "linucb_window", "a", "b", "c"]
    assert len(set(looks(names).values())) == len(names)


def test_table_aligns() -> None:
    assert table([["policy", "n"], ["a", "1"], ["b", "10"]]).splitlines() == [
        "policy   n", "----------", "a        1", "b       10",
    ]  # fmt: skip
