"""Estimators and intervals, by numbers that can be checked by hand."""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from service.analysis.estimators import (
    Array,
    Logged,
    choose_threshold,
    difference,
    direct,
    doubly_robust,
    effective_size,
    estimate,
    ips,
    snips,
    switch,
    uplift,
)
from service.analysis.intervals import Interval, adjusted, standard_error


def columns(
    reward: Any,
    behaviour: Any,
    target: Any,
    guess: Any = 0.0,
    target_guess: Any = 0.0,
    group: Any = None,
) -> Logged:
    """A single number is that of every row."""
    given = behaviour, target, guess, target_guess
    rows = [np.broadcast_to(np.asarray(each, float), np.shape(reward)) for each in given]
    return Logged(np.array(reward), *rows, group)


TWO = columns([1.0, 0.0], [0.5, 0.25], [0.25, 0.5], [0.5, 0.5], [0.4, 0.6])
"""Weights 1/2 and 2."""


def test_two_rows_by_hand() -> None:
    """IPS (1/2 * 1 + 2 * 0) / 2; SNIPS 1/2 of weights 5/2; DM (0.4 + 0.6) / 2; DR adds
    (1/2 * 1/2 - 2 * 1/2) / 2."""
    assert ips(TWO).value == 0.25
    assert snips(TWO).value == 0.2
    assert direct(TWO).value == 0.5
    assert doubly_robust(TWO).value == pytest.approx(0.5 + (0.25 - 1.0) / 2)


def test_a_switch_lies_between_the_guess_alone_and_doubly_robust() -> None:
    """A threshold of 1 keeps the first row's correction alone."""
    assert switch(TWO, 0.0).value == direct(TWO).value
    assert switch(TWO, np.inf).value == doubly_robust(TWO).value
    assert switch(TWO, 1.0).value == pytest.approx(0.5 + 0.25 / 2)


def test_equal_weights_count_in_full_and_one_weight_counts_once() -> None:
    assert effective_size(np.full(7, 3.0)) == pytest.approx(7)
    assert effective_size(np.array([5.0, 0.0, 0.0])) == 1.0
    assert effective_size(np.zeros(3)) == 0.0


@pytest.mark.parametrize("weight", [1e300, 1e-300])
def test_weights_whose_squares_overflow_or_vanish_count_in_full(weight: float) -> None:
    assert effective_size(np.full(7, weight)) == pytest.approx(7)


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_a_weight_that_is_no_number_counts_for_nothing(weight: float) -> None:
    assert effective_size(np.array([1.0, weight])) == 0.0


def test_a_guess_that_is_right_leaves_no_error() -> None:
    reward = np.array([1.0, 0.0, 1.0])
    log = Logged(reward, np.full(3, 0.1), np.full(3, 0.9), reward, np.full(3, 0.4))
    found = doubly_robust(log)
    assert found.value == pytest.approx(0.4)
    assert standard_error(found.top, found.bottom) == pytest.approx(0)


def test_an_arm_that_had_no_chance_and_was_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="no chance"):
        replace(TWO, behaviour=np.array([0.0, 0.5]))


@given(
    st.lists(
        st.tuples(st.floats(-3, 5), st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=30
    ),
    st.floats(-10, 10),
)
def test_snips_moves_with_the_rewards_and_stays_between_them(
    rows: list[tuple[float, float, float]], shift: float
) -> None:
    reward, behaviour, target = (list(column) for column in zip(*rows, strict=True))
    value = snips(columns(reward, behaviour, target)).value
    moved = snips(columns([each + shift for each in reward], behaviour, target)).value
    assert moved == pytest.approx(value + shift, abs=1e-9)
    assert min(reward) - 1e-9 <= value <= max(reward) + 1e-9


def test_the_threshold_leaves_out_a_weight_that_costs_more_than_it_tells() -> None:
    """One row of 1,000 has the weight 50: it alone would move the estimate by 0.025."""
    reward = np.tile([0.0, 1.0], 500)
    weight = np.where(np.arange(1_000) == 0, 50.0, 0.95)
    log = columns(reward, 0.5, weight * 0.5, 0.5, 0.5)
    assert choose_threshold(log) < 50.0
    assert abs(switch(log, choose_threshold(log)).value - 0.5) < 0.02


def test_the_threshold_keeps_weights_that_show_the_guess_to_be_wrong() -> None:
    """A guess of 0 for what earns 1: without the upper half of the weights it would stand."""
    rng = np.random.default_rng(0)
    weight = rng.choice([0.2, 1.8], 2_000)
    log = columns(np.ones(2_000), 0.5, weight * 0.5)
    assert choose_threshold(log) >= 1.8
    assert switch(log, choose_threshold(log)).value == pytest.approx(1.0, abs=0.05)


# -- intervals ----------------------------------------------------------------------------------


def test_an_adjusted_interval_of_equal_weights_is_student_s_and_that_of_agresti_and_coull() -> None:
    """40 clicks of 100: t's is 0.4 +- 1.984 * 0.0492; with 2 and 2 added 42 of 104."""
    values, ones = np.array([1.0] * 40 + [0.0] * 60), np.ones(100)
    found = adjusted(values, ones, ones, (0.0, 1.0), 0.95)
    quantile = t.ppf(0.975, 99)
    plain = sqrt(0.24 / 99)
    more, p = sqrt(42 / 104 * 62 / 104 / 103), 42 / 104
    assert found.low == pytest.approx(min(0.4 - quantile * plain, p - quantile * more))
    assert found.high == pytest.approx(max(0.4 + quantile * plain, p + quantile * more))


def test_a_log_without_a_click_does_not_say_that_there_are_none() -> None:
    """0 of 100: the upper end is near 0.05."""
    log = columns([0.0] * 100, 0.5, 0.5)
    found = estimate(log)["snips"]
    assert 0.03 < found.interval.high < 0.06


def test_decisions_of_one_user_do_not_count_as_so_many_users() -> None:
    """Each of 50 users 20 times with the same reward: as wide as 50 rows are, not as 1,000."""
    rng = np.random.default_rng(1)
    reward: Array = np.repeat((rng.random(50) < 0.5).astype(float), 20)
    alone = estimate(columns(reward, 0.5, 0.5))
    together = estimate(columns(reward, 0.5, 0.5, group=np.repeat(np.arange(50), 20)))
    for name in ("ips", "snips"):
        assert together[name].value == alone[name].value
        assert together[name].standard_error > 4 * alone[name].standard_error
        low, high = together[name].interval
        assert high - low > 4 * (alone[name].interval.high - alone[name].interval.low)


def test_the_difference_to_the_log_covers_the_truth_and_is_paired() -> None:
    """The target shows the better of two arms (.6 against .4) always, the log as chance has it: it
    would have earned .1 more. Its interval is narrower than that of its own value where most of the
    reward comes from the visitor."""
    hits, rng = 0, np.random.default_rng(1)
    for _ in range(200):
        shown = rng.integers(2, size=400)
        own = rng.choice([0.0, 0.4], size=400)  # of the visitor, which the guess knows
        reward = own + (rng.random(400) < np.where(shown == 1, 0.4, 0.2))
        target = (shown == 1).astype(float)
        log = Logged(reward, np.full(400, 0.5), target, own + 0.3, own + 0.3, range=(0.0, 1.4))
        value, (low, high) = uplift(log, 0.95)
        hits += low <= 0.1 <= high
        assert low < value < high
    assert hits >= 184  # of 95 percent, less is a chance of 1 in 1,000


def test_the_difference_of_two_policies_covers_the_truth_and_is_paired() -> None:
    """Each visitor brings a reward of their own, from 0 to 1, which the guess knows. Of two arms
    that are shown alike, one brings 0.4 more and the other 0.2. One policy shows the first to nine
    of ten, the other to one of ten: 0.16 apart."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        own, shown = rng.random(400), rng.integers(2, size=400)
        reward = own + (rng.random(400) < np.where(shown == 1, 0.4, 0.2))
        logs = [
            Logged(
                reward,
                np.full(400, 0.5),
                np.where(shown == 1, share, 1 - share),
                own + 0.3,
                own + 0.3,
                range=(0.0, 2.0),
            )
            for share in (0.9, 0.1)
        ]
        value, (low, high) = difference(logs[0], logs[1], 0.95)
        one, other = (doubly_robust(log).value for log in logs)
        assert value == pytest.approx(one - other)
        less, interval = difference(logs[1], logs[0], 0.95)
        assert (less, *interval) == pytest.approx((-value, -high, -low))
        hits += low <= 0.16 <= high
        assert high - low < 0.5
    assert hits >= 184  # of 95 percent, less is a chance of 1 in 1,000


def test_an_interval_of_what_weights_overrate_is_cut_to_the_range_and_not_turned_round() -> None:
    """Weights of 1.2 and rewards of 1 alone: IPS is 1.2, and both its ends lie above 1."""
    overrated = estimate(columns([1.0] * 50, 0.5, 0.6))["ips"]
    assert overrated.value == pytest.approx(1.2)
    assert overrated.interval.low > 1
    assert overrated.interval.within(0.0, 1.0) == Interval(1.0, 1.0)
    assert Interval(-0.2, 0.7).within(0.0, 1.0) == Interval(0.0, 0.7)
