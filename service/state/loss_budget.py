"""A loss budget: how much of the traffic the others may have while the service earns nearly as much
as one policy does, at any time (`never_below` of a definition).

The policy of the budget is the baseline, and all others that have shares are together the learner.
Nothing here reads a clock, a log or an array.
"""

from math import isfinite, nan

import msgspec

from service.naming import quoted
from service.state.rollout import LONGEST_SILENCE_S
from service.tables import figure

LEAST_RISE = 0.1
"""Relative rise below which the learner's share stays: a move is an event, and moves visitors."""
LEAST_FALL = 0.01
"""Relative fall below which the learner's share stays."""


class LossBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A loss budget and how far it was used.

    policy   the baseline
    by       share of the baseline's reward that the service may lose
    began    position in the log of the definition that it began with
    share    of the traffic that the learner may have
    moves    of this share, so far
    """

    policy: str
    by: float
    began: int
    share: float
    moves: int = 0


class BudgetReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says of a loss budget. A figure that nobody can compute is NaN.

    began                   position at which the budget began that this is of
    share                   that the learner may have
    ratio                   of the learner's reward to the baseline's, its lower bound at all times
                            at once; 0: nothing is known
    own, baseline           settled decisions of the learner, and of the baseline, that count
    value, baseline_value   reward of a decision of each
    newest                  time of the last settlement, in unix seconds; None: there is none
    """

    began: int
    share: float
    ratio: float
    own: int
    baseline: int
    value: float
    baseline_value: float
    newest: float | None


def unread(budget: LossBudget) -> BudgetReading:
    """Return the reading of a log that cannot be read: the share is what it is."""
    return BudgetReading(
        began=budget.began,
        share=budget.share,
        ratio=nan,
        own=0,
        baseline=0,
        value=nan,
        baseline_value=nan,
        newest=None,
    )


def learner_share(by: float, ratio: float) -> float:
    """Return the largest share s with which a learner that earns `ratio` times what the baseline
    does loses at most the budget: s (1 - ratio) = by.

    `by` is safe even if it earns nothing. Both keep at least `by`, so that both stay measured.
    """
    most = 1 - by
    return most if 1 - ratio <= by / most else min(max(by / (1 - ratio), by), most)


def next_share(budget: LossBudget, reading: BudgetReading, now: float) -> float | None:
    """Return the share that the learner is to have from now on; None: the one that it has.

    A fall counts however old the data are. A rise needs new data. now: unix seconds
    """
    if reading.began != budget.began:
        return None
    share, before = reading.share, budget.share
    if share < before * (1 - LEAST_FALL):
        return share
    silent = reading.newest is None or now - reading.newest > LONGEST_SILENCE_S
    enough = share >= before * (1 + LEAST_RISE) or share == 1 - budget.by
    return share if share > before and enough and not silent else None


def budget_sentence(budget: LossBudget, reading: BudgetReading) -> str:
    """Say where a loss budget stands, in two sentences."""
    has = f"The others may have {100 * budget.share:.3g} percent of the traffic"
    if not isfinite(reading.ratio):
        return f"The log cannot be read now. {has}."
    if not (isfinite(reading.value) and isfinite(reading.baseline_value)):
        return f"Too few decisions are settled to compare with {quoted(budget.policy)}. {has}."
    return (
        f"The others earned {figure(reading.value)} a decision after {reading.own:,} "
        f"settlement{'s' * (reading.own != 1)}, and {quoted(budget.policy)} "
        f"{figure(reading.baseline_value)}: at least {100 * reading.ratio:.3g} percent of it, "
        f"with 95 percent. {has}."
    )
