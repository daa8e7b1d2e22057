"""Evidence for and against a challenger that takes over its baseline's traffic in stages.

A row is a decision of one of the two. Given that, the challenger had drawn it with a chance c, and
the baseline with 1 - c. Rewards are measured from the low end of their range, so that a margin can
be a share of what the baseline earns. The question is the sign of

    D = challenger - (1 - margin) baseline

which is linear in the terms of `sequences`. Stages change c, and so the spread of the terms.

Advance: one confidence sequence over all stages bounds D from below. A sequence needs a bound of
|e| that is fixed in advance: `least`, the smallest chance that counts, gives it. For rates of 0.2
and of 0.02 alike, an equal challenger of a twentieth of the traffic has advanced after
11 p (1 - p) / (margin p)^2 of its own decisions, in the median.

Stop: half of the level is for the same sequence, which bounds D from above. It pays for the range
of e, which is 1 / least whatever is earned, so it is slow to see a challenger that earns nothing.
The other half is for bets (Waudby-Smith, Ramdas 2024, "Estimating means of bounded random variables
by betting", section 4), which see it after 0.5 to 0.6 as many decisions. A bettor holds that D is
below 0, and puts a fraction kappa of the wealth on each unit's first row:

    wealth *= 1 - kappa z / b

where b is the largest that z can be. If D is at least 0 given the past, no bettor's wealth grows in
expectation, nor does the mean of the wealths of several. So it ever reaches 1 / alpha with
probability alpha at most (Ville 1939), in finite samples. Later rows of a unit have the same draw,
so they are no bets.

The terms of the bets keep the running means as control variates. Means of earlier rewards and the
chance are known before a row is drawn, so they bound z without any assumption, and the bets stay
fair. Without the means, z would vary by r^2 / c instead of (r - m)^2 / c: a quarter more at a rate
of 0.2, and ten times as much at 0.9.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from service.analysis.sequences import (
    MOST_ROWS,
    Array,
    IntegerArray,
    by_unit,
    earlier_of_unit,
)
from service.bandits.boundary import log_evidence, radius
from service.state.rollout import RolloutReading

ADVANCE_ALPHA = 0.01
"""Chance that a challenger which loses more than the margin ever seems to be within it."""
STOP_ALPHA = 0.05
"""Chance that a challenger within the margin ever seems to be beyond it: half of it by the
sequence, and half by the bets."""
INTERVAL_ALPHA = 0.05
"""Level of the interval of the difference, which decides nothing."""
BETS: Array = np.array([0.99, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02])
"""Fractions of the wealth that are bet. The best one is D c / (variance of the challenger's
reward): 1 for a challenger that earns nothing, 0.5 for one that earns half, whatever the rate, and
less for a small loss."""
CHANCE_ROUNDING = 1e-9
"""Relative error of a chance, more than its arithmetic has: the smallest chance counts."""


class RolloutRows(NamedTuple):
    """Decisions in the order of the log, (n,) each.

    own, baseline                 whether the challenger, or the baseline, decided
    own_chance, baseline_chance   with which each was drawn
    reward                        in its own unit
    unit                          number of the visitor, from 0; they may be any below some millions
    """

    own: npt.NDArray[np.bool_]
    baseline: npt.NDArray[np.bool_]
    own_chance: Array
    baseline_chance: Array
    reward: Array
    unit: IntegerArray


@dataclass(frozen=True)
class RolloutFigures:
    """Figures after some numbers of rows, (k,) each.

    decisions    of both
    own          decisions of the challenger; the others are the baseline's
    own_sum      sum of the challenger's terms; `baseline_sum` of the baseline's
    v            sum of squares of D; `v_difference` of the difference
    wealth       log of the mean wealth of the bets against the challenger
    units        effective number of visitors of the rarer policy
    variance     of a reward of each policy, (2, k), about the mean of the earlier ones
    margin       share of the baseline's reward
    stop_alpha   level of a stop: half of it by the sequence, and half by the bets
    scale        bound of |e|
    limits       least and largest reward; rewards are measured from the least
    """

    decisions: IntegerArray
    own: IntegerArray
    own_sum: Array
    baseline_sum: Array
    v: Array
    v_difference: Array
    wealth: Array
    units: Array
    variance: Array
    margin: float
    stop_alpha: float
    scale: float
    limits: tuple[float, float]

    def __len__(self) -> int:
        return len(self.decisions)

    @property
    def value(self) -> Array:
        """Reward of a decision of the challenger. NaN before the first decision, as all means."""
        return self._within_limits(self.own_sum)

    @property
    def baseline_value(self) -> Array:
        """Reward of a decision of the baseline."""
        return self._within_limits(self.baseline_sum)

    @property
    def difference(self) -> Array:
        """Reward of the challenger less that of the baseline."""
        return self._mean(self.own_sum - self.baseline_sum)

    @property
    def interval(self) -> tuple[Array, Array]:
        """Ends of the interval of the difference, of level INTERVAL_ALPHA at all times at once."""
        half = self._mean(radius(self.v_difference, self.scale, INTERVAL_ALPHA))
        return self.difference - half, self.difference + half

    @property
    def within(self) -> Array:
        """Estimate of D: how far the challenger is inside the margin; below 0, beyond it."""
        return self._mean(self._sum)

    @property
    def lower(self) -> Array:
        """Lower bound of D, of level ADVANCE_ALPHA."""
        return self.within - self._mean(radius(self.v, self.scale, 2 * ADVANCE_ALPHA))

    @property
    def upper(self) -> Array:
        """Upper bound of D, of half the level of a stop."""
        return self.within + self._mean(radius(self.v, self.scale, self.stop_alpha))

    @property
    def stop_wealth(self) -> float:
        """Wealth of the bets that is enough to stop."""
        return 2 / self.stop_alpha

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """Whether the challenger is within the margin: `lower` is above 0."""
        return self._evidence(self._sum) > log(1 / ADVANCE_ALPHA)

    @property
    def fails(self) -> npt.NDArray[np.bool_]:
        """Whether the challenger is beyond the margin: `upper` is below 0, or the wealth is
        enough."""
        enough = log(self.stop_wealth)
        by_sequence = self._evidence(-self._sum) > enough
        return np.asarray(by_sequence | (self.wealth >= enough))

    def at(self, places: IntegerArray) -> "RolloutFigures":
        """Return the figures after some of the numbers of rows."""
        columns: dict[str, Any] = {
            name: value[..., places]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return replace(self, **columns)

    def reading(self, newest: float | None) -> RolloutReading:
        """Return what a rollout is judged by, after the last of the numbers of rows.

        newest   time of the last settlement, in unix seconds
        """
        last = self.at(np.array([-1]))
        return RolloutReading(
            own=int(last.own[0]),
            baseline=int(last.decisions[0] - last.own[0]),
            value=float(last.value[0]),
            baseline_value=float(last.baseline_value[0]),
            within=float(last.within[0]),
            lower=float(last.lower[0]),
            upper=float(last.upper[0]),
            evidence=float(np.exp(min(last.wealth[0], 700.0))) / self.stop_wealth,
            units=float(last.units[0]),
            newest=newest,
        )

    @property
    def _sum(self) -> Array:
        return self.own_sum - (1 - self.margin) * self.baseline_sum

    def _evidence(self, s: Array) -> Array:
        return log_evidence(np.maximum(s, 0.0), self.v, self.scale)

    def _within_limits(self, sums: Array) -> Array:
        low, high = self.limits
        return np.asarray(np.clip(self._mean(sums) + low, low, high))

    def _mean(self, sums: Array) -> Array:
        return _ratio(sums, self.decisions)


class _Units:
    """What is kept of each unit: its rows that count, and sums over them."""

    def __init__(self) -> None:
        self.rows = np.zeros(1, dtype=np.int64)
        self.sums = np.zeros((3, 1))

    def reach(self, most: int) -> None:
        """Make room for units below a number."""
        missing = most - len(self.rows)
        if missing > 0:
            room = max(missing, len(self.rows))
            self.rows = np.pad(self.rows, (0, room))
            self.sums = np.pad(self.sums, ((0, 0), (0, room)))


class RolloutEvidence:
    """Evidence about one challenger, which costs what is new.

    A row counts if it is one of the two policies', one of the first MOST_ROWS of its unit, and if
    the chances of both, given that one of them decided, are at least `least`. So at all of the
    traffic no row counts: nothing is left to compare with.
    """

    def __init__(
        self,
        margin: float,  # share of the baseline's reward
        least: float,  # smallest chance of either, given one of the two, that counts
        limits: tuple[float, float],  # least and largest reward
        first: float = 0.0,  # mean of rewards before the first one
        stop_alpha: float = STOP_ALPHA,  # level of a stop
    ) -> None:
        self._margin, self._least, self._stop_alpha = margin, least, stop_alpha
        self._limits = self._low, high = limits
        self._span = high - self._low
        self._first = first - self._low
        self._scale = self._span / least
        self._units = _Units()
        self._means = np.zeros((2, 2))  # number and sum of rewards, of each policy
        self._sums = np.zeros(5)  # terms of each, v, v of the difference, squares of weights
        self._spread = np.zeros(2)  # squares of the rewards' surprises, of each policy
        self._logs = np.zeros(len(BETS))

    def add(self, rows: RolloutRows, marks: IntegerArray | None = None) -> RolloutFigures:
        """Add rows. Returns the figures after each of these numbers of them; of all by default.

        marks   (k,) ascending, of 0 to n
        """
        marks = np.array([len(rows.own)]) if marks is None else marks
        chance = rows.own_chance / np.maximum(rows.own_chance + rows.baseline_chance, 1e-300)
        enough = np.minimum(chance, 1 - chance) >= self._least * (1 - CHANCE_ROUNDING)
        kept = (rows.own | rows.baseline) & enough
        kept[kept] = self._count_units(rows.unit[kept])
        marks = np.concatenate([[0], np.cumsum(kept)])[marks]
        own, unit, chance = rows.own[kept], rows.unit[kept], chance[kept]
        reward = rows.reward[kept] - self._low
        number, m, e = self._terms(own, chance, reward)
        control = 1 - self._margin
        sums = np.stack(
            [
                *(m + e),
                self._squares(0, e[0] - control * e[1], unit),
                self._squares(1, e[0] - e[1], unit),
                self._squares(2, 1 / np.sqrt(np.minimum(chance, 1 - chance)), unit),
            ]
        )
        self._sums, found = _running(self._sums, sums, marks)
        wealth = self._bet(own, unit, chance, m, e, marks)
        np.add.at(self._units.rows, unit, 1)
        drawn = np.stack([chance, 1 - chance]) * e
        self._spread, spread = _running(self._spread, drawn**2, marks)
        decisions = number.sum(axis=0)[marks]
        units = _ratio(decisions**2, found[4], 0.0)
        return RolloutFigures(
            decisions=decisions.astype(np.int64),
            own=number[0][marks].astype(np.int64),
            own_sum=found[0],
            baseline_sum=found[1],
            v=np.maximum(found[2], 0.0),
            v_difference=np.maximum(found[3], 0.0),
            wealth=wealth,
            units=units,
            variance=_ratio(spread, number[:, marks]),
            margin=self._margin,
            stop_alpha=self._stop_alpha,
            scale=self._scale,
            limits=self._limits,
        )

    def _count_units(self, unit: IntegerArray) -> npt.NDArray[np.bool_]:
        """Say which rows are among the first MOST_ROWS of their unit."""
        self._units.reach(int(unit.max(initial=-1)) + 1)
        order, first = by_unit(unit)
        place = np.empty(len(unit), dtype=np.int64)
        place[order] = np.arange(len(unit)) - first
        return np.asarray(self._units.rows[unit] + place < MOST_ROWS)

    def _terms(
        self, own: npt.NDArray[np.bool_], chance: Array, reward: Array
    ) -> tuple[Array, Array, Array]:
        """Return the decisions of each policy after each number of rows, (2, n + 1), and m and e of
        their terms, (2, n)."""
        drawn = np.stack([own, ~own]).astype(float)
        _, number = _running(self._means[:, 0], drawn)
        _, earned = _running(self._means[:, 1], drawn * reward)
        self._means = np.stack([number[:, -1], earned[:, -1]], axis=1)
        before, sums = number[:, :-1], earned[:, :-1]
        m = np.where(before > 0, sums / np.maximum(before, 1), self._first)
        return number, m, drawn * (reward - m) / np.stack([chance, 1 - chance])

    def _squares(self, which: int, values: Array, unit: IntegerArray) -> Array:
        """Return by how much each row raises the sum over units of (sum of values)^2."""
        sums = self._units.sums[which]
        mine = sums[unit] + earlier_of_unit(values, unit)
        np.add.at(sums, unit, values)
        return np.asarray(values * (2 * mine + values))

    def _bet(
        self,
        own: npt.NDArray[np.bool_],
        unit: IntegerArray,
        chance: Array,
        m: Array,
        e: Array,
        marks: IntegerArray,
    ) -> Array:
        """Return the log of the mean wealth after each number of rows, (k,)."""
        control = 1 - self._margin
        middle = m[0] - control * m[1]
        most = middle + np.maximum((self._span - m[0]) / chance, control * m[1] / (1 - chance))
        order, first = by_unit(unit)
        opens = np.empty(len(unit), dtype=bool)
        opens[order] = np.arange(len(unit)) == first
        bets = opens & (self._units.rows[unit] == 0) & (most > 0)
        odds = np.where(bets, (middle + e[0] - control * e[1]) / np.where(most > 0, most, 1.0), 0.0)
        found = np.empty((len(BETS), len(marks)))
        for place, kappa in enumerate(BETS):
            logs = np.log1p(-kappa * odds)
            self._logs[place : place + 1], found[place : place + 1] = _running(
                self._logs[place : place + 1], logs[None], marks
            )
        return np.asarray(np.logaddexp.reduce(found, axis=0) - log(len(BETS)))


def _ratio(over: Array, under: Array | IntegerArray, nothing: float = np.nan) -> Array:
    """Return the ratios, and `nothing` where there is nothing below."""
    found = np.full(over.shape, nothing)
    return np.asarray(np.divide(over, under, out=found, where=under > 0))


def _running(start: Array, values: Array, marks: IntegerArray | None = None) -> tuple[Array, Array]:
    """Return the sums (j,) of `start` (j,) and `values` (j, n), and those after each number of
    values: (j, n + 1), or (j, k) after `marks`."""
    sums = start[:, None] + np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    return sums[:, -1].copy(), sums if marks is None else sums[:, marks]
