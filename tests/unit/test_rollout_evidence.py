"""The incremental evidence of a rollout against the whole log at once, and bets by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.analysis.rollout_evidence import (
    ADVANCE_ALPHA,
    BETS,
    INTERVAL_ALPHA,
    STOP_ALPHA,
    RolloutEvidence,
    RolloutFigures,
    RolloutRows,
)
from service.analysis.sequences import ConfidenceSequence, Terms, counted, terms
from service.analysis.verdict import effective_units
from service.state.rollout import RolloutPlan, begun
from service.state.traffic import Traffic

MARGIN, LIMITS, FIRST, LEAST = 0.1, (-1.0, 2.0), 0.5, 0.05
SHARES = 0.05, 0.2, 0.5


def evidence(margin: float = MARGIN) -> RolloutEvidence:
    return RolloutEvidence(margin, LEAST, LIMITS, FIRST)


def rows_of(seed: int, count: int, units: int, *, part: float = 0.8) -> RolloutRows:
    """Random decisions of two policies and a third one, with `part` of the traffic for the two, in
    three stages."""
    rng = np.random.default_rng(seed)
    share = np.array(SHARES)[np.sort(rng.integers(3, size=count))]
    draw = rng.random(count)
    own = draw < part * share
    baseline = (draw < part) & ~own
    return RolloutRows(
        own, baseline, part * share, part * (1 - share), rng.uniform(*LIMITS, count),
        rng.integers(units, size=count),
    )  # fmt: skip


def slices(rows: RolloutRows, cuts: list[int]) -> list[RolloutRows]:
    ends = [0, *sorted(cuts), len(rows.own)]
    return [RolloutRows(*(each[a:b] for each in rows)) for a, b in pairwise(ends)]


def at_once(rows: RolloutRows) -> tuple[Terms, Terms, np.ndarray, np.ndarray]:
    """Terms of the two policies by `terms`, the units, and the chance of the challenger."""
    both = np.flatnonzero(rows.own | rows.baseline)
    kept = both[counted(rows.unit[both])]
    chance = (rows.own_chance / (rows.own_chance + rows.baseline_chance))[kept]
    reward, span = rows.reward[kept] - LIMITS[0], LIMITS[1] - LIMITS[0]
    own, baseline = (
        terms(drawn[kept], each, reward, FIRST - LIMITS[0], span)
        for drawn, each in ((rows.own, chance), (rows.baseline, 1 - chance))
    )
    return own, baseline, rows.unit[kept], chance


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 150),
    st.sampled_from([3, 20, 10_000]),
    st.lists(st.integers(0, 150), max_size=4),
)
def test_batches_tell_what_the_whole_log_tells(
    seed: int, count: int, units: int, cuts: list[int]
) -> None:
    rows = rows_of(seed, count, units)
    found = evidence()
    for each in slices(rows, [min(cut, count) for cut in cuts]):
        figures = found.add(each)
    own, baseline, unit, chance = at_once(rows)
    assert figures.decisions == len(unit)
    if not len(unit):
        assert np.isnan(figures.lower).all()
        return
    scale = (LIMITS[1] - LIMITS[0]) / LEAST

    def watched(share: float, alpha: float) -> tuple[float, float]:
        each = own - share * baseline
        sequence = ConfidenceSequence(Terms(each.m, each.e, scale), unit, alpha)
        [mean], [half] = sequence.at(np.array([len(unit) - 1]))
        return float(mean), float(half)

    mean, half = watched(1 - MARGIN, 2 * ADVANCE_ALPHA)
    assert figures.within == pytest.approx(mean, abs=1e-9)
    assert figures.lower == pytest.approx(mean - half, abs=1e-9)
    mean, half = watched(1 - MARGIN, STOP_ALPHA)
    assert figures.upper == pytest.approx(mean + half, abs=1e-9)
    mean, half = watched(1.0, INTERVAL_ALPHA)
    low, high = figures.interval
    assert [low[0], high[0]] == pytest.approx([mean - half, mean + half], abs=1e-9)
    rarer = np.minimum(chance, 1 - chance)
    assert figures.units == pytest.approx(effective_units(rarer, unit)[-1])
    assert figures.value == pytest.approx(np.clip(own.z.mean() + LIMITS[0], *LIMITS))
    assert figures.baseline_value == pytest.approx(np.clip(baseline.z.mean() + LIMITS[0], *LIMITS))


def figures_in_order(rows: RolloutRows) -> RolloutFigures:
    return evidence().add(rows, np.arange(len(rows.own) + 1))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.sampled_from([3, 10_000]),
    st.integers(0, 80),
)
def test_marks_tell_what_batches_tell(seed: int, count: int, units: int, cut: int) -> None:
    rows = rows_of(seed, count, units)
    found, marked = evidence(), figures_in_order(rows)
    for each in slices(rows, [min(cut, count)]):
        figures = found.add(each)
    last = marked.at(np.array([-1]))
    for name, value in vars(figures).items():
        assert value == pytest.approx(getattr(last, name), rel=1e-9, nan_ok=True), name
    first = evidence().add(slices(rows, [min(cut, count)])[0])
    there = marked.at(np.array([min(cut, count)]))
    assert first.wealth == pytest.approx(there.wealth, rel=1e-9)
    assert (first.own, first.decisions) == (there.own, there.decisions)


def one_row(*, own: bool, reward: float, chance: float = 0.2, unit: int = 0) -> RolloutRows:
    return RolloutRows(
        np.array([own]), np.array([not own]), np.array([chance]), np.array([1 - chance]),
        np.array([reward]), np.array([unit]),
    )  # fmt: skip


def test_a_bet_pays_by_how_far_a_term_is_from_the_largest_there_can_be() -> None:
    """Range 0 to 1, margin 0, chance 1/5, means 0: z of a click of the challenger is 5, the most
    there can be, and of one of the baseline -1.25."""
    lost = RolloutEvidence(0.0, 0.05, (0.0, 1.0)).add(one_row(own=True, reward=1.0))
    assert np.exp(lost.wealth) == pytest.approx(np.mean(1 - BETS))
    won = RolloutEvidence(0.0, 0.05, (0.0, 1.0)).add(one_row(own=False, reward=1.0))
    assert np.exp(won.wealth) == pytest.approx(np.mean(1 + 0.25 * BETS))


def test_the_two_ways_to_stop_share_one_level() -> None:
    """Each has 2.5 percent: a fair bettor reaches 40 times the start with that chance at most."""
    assert STOP_ALPHA == 0.05
    assert evidence().add(rows_of(1, 10, 5)).stop_wealth == pytest.approx(40)
    assert ADVANCE_ALPHA == 0.01


def test_a_unit_bets_once() -> None:
    found = RolloutEvidence(0.0, 0.05, (0.0, 1.0))
    once = found.add(one_row(own=False, reward=1.0))
    again = found.add(one_row(own=False, reward=1.0))
    assert again.wealth == pytest.approx(once.wealth)
    assert again.decisions == 2
    other = found.add(one_row(own=False, reward=1.0, unit=1))
    assert other.wealth != pytest.approx(once.wealth)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.sampled_from(SHARES))
def test_a_fair_bettor_gains_nothing_in_expectation(
    before: float, theirs: float, reward: float, share: float
) -> None:
    """Both policies earn `reward`, whatever the rows before taught: with a margin of 0 the wealth
    is a martingale."""
    found = []
    for own in (True, False):
        each = RolloutEvidence(0.0, 0.05, (0.0, 1.0))
        each.add(one_row(own=True, reward=before, unit=0))
        start = each.add(one_row(own=False, reward=theirs, unit=1))
        end = each.add(one_row(own=own, reward=reward, chance=share, unit=2))
        found.append((start.wealth[0], end.wealth[0]))
    # All bettors start this row with different wealths, so the mean is over both draws.
    start = np.exp(found[0][0])
    assert share * np.exp(found[0][1]) + (1 - share) * np.exp(found[1][1]) == pytest.approx(start)


def test_rows_with_a_smaller_chance_than_agreed_do_not_count() -> None:
    found = evidence()
    assert found.add(one_row(own=True, reward=1.0, chance=0.049)).decisions == 0
    assert found.add(one_row(own=True, reward=1.0, chance=1.0)).decisions == 0
    assert found.add(one_row(own=True, reward=1.0, chance=0.05)).decisions == 1


def test_nothing_is_known_before_the_first_row() -> None:
    rows = rows_of(0, 0, 1)
    figures = evidence().add(rows)
    assert not figures.holds.any()
    assert not figures.fails.any()
    assert np.isnan(figures.value).all()
    reading = figures.reading(None)
    assert (reading.own, reading.baseline, reading.units) == (0, 0, 0.0)


def clicks(rates: tuple[float, float], count: int, seed: int = 0) -> RolloutRows:
    rng = np.random.default_rng(seed)
    own = rng.random(count) < 0.05
    reward = (rng.random(count) < np.where(own, *rates)).astype(float)
    share = np.full(count, 0.05)
    return RolloutRows(own, ~own, share, 1 - share, reward, np.arange(count))


@pytest.mark.parametrize(("rates", "outcome"), [((0.3, 0.2), "holds"), ((0.0, 0.2), "fails")])
def test_outcomes_are_where_the_bounds_are(rates: tuple[float, float], outcome: str) -> None:
    figures = RolloutEvidence(0.1, 0.05, (0.0, 1.0)).add(clicks(rates, 12_000), np.arange(12_001))
    assert getattr(figures, outcome).any()
    assert (figures.holds[1:] == (figures.lower[1:] > 0)).all()
    stops = (figures.upper[1:] < 0) | (np.exp(figures.wealth[1:]) >= figures.stop_wealth)
    assert (figures.fails[1:] == stops).all()


def test_bets_see_a_broken_challenger_long_before_the_sequence() -> None:
    found = []
    for seed in range(20):
        rows = clicks((0.0, 0.2), 4_000, seed)
        figures = RolloutEvidence(0.1, 0.05, (0.0, 1.0)).add(rows, np.arange(4_001))
        by_bets = figures.own[np.argmax(figures.wealth >= np.log(figures.stop_wealth))]
        found.append((by_bets, figures.own[np.argmax(figures.upper < 0)]))
    bets, sequence = np.median(found, axis=0)
    assert 0 < bets <= 60
    assert bets <= 0.65 * sequence


def test_the_variance_is_that_of_rewards() -> None:
    figures = RolloutEvidence(0.1, 0.05, (0.0, 1.0)).add(clicks((0.1, 0.2), 40_000))
    assert figures.variance[:, 0] == pytest.approx([0.09, 0.16], rel=0.1)


@pytest.mark.parametrize("stage", [0.01, 0.05, 0.1, 0.2, 0.95])
@pytest.mark.parametrize("whole", [0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0, 3.0])
@pytest.mark.parametrize("other", [0.0, 0.1, 0.3, 2.0])
def test_rows_of_the_smallest_share_count_however_its_chances_are_rounded(
    stage: float, whole: float, other: float
) -> None:
    """0.7 of the traffic, divided at 5 percent, has chances whose part is 0.04999 (17 digits)."""
    rollout = begun(RolloutPlan(policy="new", baseline="old", stages=(stage, 1.0)), 1, 0.0)
    traffic = Traffic({"old": whole, "new": 0.0, "other": other}, {"new": rollout})
    chances = (np.full(2, traffic.chance(name)) for name in ("new", "old"))
    own = np.array([True, False])
    found = RolloutEvidence(MARGIN, rollout.least_share, LIMITS).add(
        RolloutRows(own, ~own, *chances, np.ones(2), np.arange(2))
    )
    assert (found.own[-1], found.decisions[-1]) == (1, 2)
