"""The share that a learner may have under a loss budget, by what the log says.

A row is a decision whose policy was drawn: the learner l decided it with a chance s, the baseline b
with 1 - s. Rewards are measured from the low end of their range, so that a budget can be a share of
what the baseline earns. The service keeps to the budget where

    s (mu_b - mu_l) <= by mu_b,    which is    s <= by / (1 - mu_l / mu_b)

With t, a lower bound of the ratio that holds at all times at once, in place of the ratio: the share
is by / (1 - t), at least `by` and at most 1 - by. Nothing known is t = 0, and `by` is safe even if
the learner earns nothing.

t is the largest ratio for which the confidence sequence of own - t baseline has a lower bound of at
least 0. That is one sequence. Conservative bandits (Wu, Shariff, Lattimore, Szepesvari 2016;
C-SquareCB: Deb, Ghavamzadeh, Banerjee 2024, arXiv 2412.06165) bound three things, each with its own
error: what the learner earned, what it will earn next, and what the baseline would have earned.
Only their ratio matters here, and its errors partly cancel.

The terms are those of `sequences`, with the weight s (1 - s), which is known before a row is drawn:

    learner   w m_l + (1 - s) (r - m_l) where it decided
    baseline  w m_b + s (r - m_b)       where it decided

The weight takes away the division by a chance, so no surprise is larger than the range of rewards,
and decisions of a time when one of both was rare, which tell little, do not drown the later ones.
The ratio that is bounded is that of the weighted means, so it holds as long as the learner does not
become worse than it was. What a learner learns makes it better, which is on the safe side.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from service.analysis.sequences import (
    Array,
    IntegerArray,
    Terms,
    counted,
    ratio_interval,
    terms,
)
from service.state.loss_budget import BudgetReading, LossBudget, learner_share

ALPHA = 0.05
"""Chance that the service ever earns less than the budget allows."""


class BudgetRows(NamedTuple):
    """Decisions in the order of the log, (n,) each.

    own      whether the learner decided; else the baseline did
    chance   of the learner, above 0 and below 1
    reward   in its own unit
    unit     number of the visitor
    """

    own: npt.NDArray[np.bool_]
    chance: Array
    reward: Array
    unit: IntegerArray


def budget_reading(
    budget: LossBudget,
    rows: BudgetRows,
    limits: tuple[float, float],  # least and largest reward
    first: float = 0.0,  # mean of rewards before the first one
    newest: float | None = None,  # time of the last settlement, in unix seconds
) -> BudgetReading:
    """Return what rows say of a loss budget. Of each unit, its first ten count."""
    kept = counted(rows.unit)
    own, chance, unit = rows.own[kept], rows.chance[kept], rows.unit[kept]
    (low, high), reward, weight = limits, rows.reward[kept], chance * (1 - chance)

    def weighted(drawn: npt.NDArray[np.bool_], chance: Array) -> Terms:
        each = terms(drawn, chance, reward - low, first - low, high - low)
        return Terms(weight * each.m, weight * each.e, high - low)

    found = None
    if own.any() and not own.all():
        both = weighted(own, chance), weighted(~own, 1 - chance)
        found = ratio_interval(*both, unit, 2 * ALPHA)
    ratio = max(found[0], 0.0) if found is not None else 0.0
    return BudgetReading(
        began=budget.began,
        share=learner_share(budget.by, ratio),
        ratio=ratio,
        own=int(own.sum()),
        baseline=int((~own).sum()),
        value=_mean(reward[own]),
        baseline_value=_mean(reward[~own]),
        newest=newest,
    )


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else np.nan
