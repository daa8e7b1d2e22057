"""A loss budget: the share that figures allow, and when it moves."""

from math import nan

import numpy as np
import pytest
from msgspec.structs import replace

from service.analysis.definitions import Definitions
from service.analysis.loss_budget import BudgetRows, budget_reading
from service.analysis.rollouts import RolloutLooks, decode_looks, encode_looks
from service.state.loss_budget import (
    BudgetReading,
    LossBudget,
    budget_sentence,
    learner_share,
    next_share,
    unread,
)
from service.state.rollout import LONGEST_SILENCE_S
from tests.unit.folding import Log
from tests.unit.test_traffic import budgeted

BUDGET = LossBudget(policy="main", by=0.02, began=7, share=0.02)


def rows(own: float, baseline: float, count: int = 20_000, share: float = 0.3) -> BudgetRows:
    """Rewards of 0 and 1 at these rates."""
    rng = np.random.default_rng(1)
    drawn = rng.random(count) < share
    reward = (rng.random(count) < np.where(drawn, own, baseline)).astype(float)
    return BudgetRows(drawn, np.full(count, share), reward, np.arange(count))


def reading(share: float, newest: float | None = 0.0) -> BudgetReading:
    return replace(unread(BUDGET), share=share, ratio=1 - 0.02 / share, newest=newest)


@pytest.mark.parametrize(
    ("by", "ratio", "share"),
    [(0.02, 0.0, 0.02), (0.02, 0.5, 0.04), (0.02, 0.98, 0.98), (0.02, 2.0, 0.98), (0.02, 1.0, 0.98),
     (0.02, 0.9, 0.2), (0.5, 0.0, 0.5), (0.5, 1.0, 0.5)],
)  # fmt: skip
def test_the_share_spends_the_budget_and_leaves_both_some_traffic(
    by: float, ratio: float, share: float
) -> None:
    assert learner_share(by, ratio) == pytest.approx(share)


@pytest.mark.parametrize(("own", "least", "most"), [(0.3, 1.2, 1.5), (0.15, 0.6, 0.75), (0, 0, 0)])
def test_the_ratio_is_bounded_from_below(own: float, least: float, most: float) -> None:
    found = budget_reading(BUDGET, rows(own, 0.2), (0.0, 1.0))
    assert least <= found.ratio <= most
    assert found.share == learner_share(0.02, found.ratio)
    assert found.own + found.baseline == 20_000
    assert found.value == pytest.approx(own, abs=0.02)


def test_rewards_are_measured_from_the_low_end_of_their_range() -> None:
    """A learner that earns -0.4 where the baseline earns -0.6 has earned 1.5 times as much."""
    told = rows(0.3, 0.2)
    found = budget_reading(BUDGET, told, (0.0, 1.0))
    moved = budget_reading(
        BUDGET, told._replace(reward=2 * told.reward - 1), (-1.0, 1.0), first=-1.0
    )
    assert moved.ratio == pytest.approx(found.ratio)
    assert moved.value == pytest.approx(2 * found.value - 1)


def test_a_time_when_the_learner_was_rare_does_not_drown_what_follows() -> None:
    early, late = rows(0.3, 0.2, 20_000, 0.02), rows(0.3, 0.2, 4_000, 0.5)
    both = BudgetRows(*map(np.concatenate, zip(early, late, strict=True)))
    both = both._replace(unit=np.arange(24_000))
    alone, together = (budget_reading(BUDGET, each, (0.0, 1.0)).ratio for each in (late, both))
    assert together >= 0.95 * alone > 1


def test_a_crawler_counts_ten_times() -> None:
    told, extra = rows(0.3, 0.2, 2_000), 5_000
    crawler = BudgetRows(
        np.full(extra, True), np.full(extra, 0.3), np.ones(extra), np.full(extra, 2_000)
    )
    both = BudgetRows(*map(np.concatenate, zip(told, crawler, strict=True)))
    without, found = (budget_reading(BUDGET, each, (0.0, 1.0)) for each in (told, both))
    assert found.own == without.own + 10
    assert found.ratio == pytest.approx(without.ratio, abs=0.1)


@pytest.mark.parametrize("kept", [0, 1])
def test_nothing_is_known_of_a_policy_that_has_not_decided(kept: int) -> None:
    told = rows(0.3, 0.2, 500)
    only = BudgetRows(*(column[told.own == kept] for column in told))
    assert budget_reading(BUDGET, only, (0.0, 1.0)).ratio == 0
    none = BudgetRows(*(column[:0] for column in told))
    assert budget_reading(BUDGET, none, (0.0, 1.0)).share == 0.02


def test_it_rises_by_a_tenth_and_falls_by_a_hundredth() -> None:
    now = replace(BUDGET, share=0.5)
    for share, moves in ((0.54, False), (0.56, True), (0.496, False), (0.49, True)):
        assert next_share(now, reading(share), 0.0) == (share if moves else None)
    last = replace(BUDGET, share=0.95)
    assert next_share(last, reading(0.975), 0.0) is None
    assert next_share(last, reading(0.98), 0.0) == 0.98
    assert next_share(replace(BUDGET, share=0.98), reading(0.98), 0.0) is None


def test_it_does_not_rise_without_new_data_and_falls_whenever_it_is_known() -> None:
    now, silent = replace(BUDGET, share=0.5), LONGEST_SILENCE_S + 1
    for newest, at in ((None, 0.0), (0.0, silent)):
        assert next_share(now, reading(0.9, newest), at) is None
        assert next_share(now, reading(0.1, newest), at) == 0.1


def test_figures_of_another_budget_move_nothing() -> None:
    assert next_share(replace(BUDGET, began=8), reading(0.9), 0.0) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (unread(BUDGET), "The log cannot be read now. "),
        (replace(unread(BUDGET), ratio=0.0), "Too few decisions are settled to compare with "),
        (
            replace(reading(0.2), own=1, value=0.19, baseline=5, baseline_value=0.2),
            "The others earned 0.19 a decision after 1 settlement, and 'main' 0.2: at least 90 "
            "percent of it, with 95 percent. ",
        ),
    ],
)
def test_it_says_where_it_stands(said: BudgetReading, expected: str) -> None:
    sentence = budget_sentence(BUDGET, said)
    assert sentence.startswith(expected)
    assert sentence.endswith("The others may have 2 percent of the traffic.")


def test_a_look_keeps_it_over_the_wire() -> None:
    looks = RolloutLooks({}, {}, (0.0, 1.0), replace(unread(BUDGET), ratio=0.5))
    found = decode_looks(encode_looks(looks)).budget
    assert found is not None
    assert (found.began, found.ratio, repr(found.value)) == (7, 0.5, repr(nan))


def test_the_learner_is_another_one_once_its_shares_change_beside_each_other() -> None:
    log, told = Log(), Definitions()

    def since() -> int:
        for position, (event, _) in list(enumerate(log.records, 1))[since.read :]:
            told.take(position, event)
            since.read = position
        return told.mixed_since("old")

    since.read = 0
    log.define(budgeted())
    assert since() == 1
    log.share(old=1.0)
    log.move_budget(0.5)
    assert since() == 1
    log.share(new=2.0)
    assert since() == 4
    log.share(new=4.0, other=2.0)
    assert since() == 4
    log.share(other=0.0)
    assert since() == 6
