"""Simulated rollouts: how many challengers are promoted, stopped or left undecided, and after how
many of their own settlements.

A look a simulated minute. A reward waits for an hour. Each day has no decisions for three hours,
which begin at its end, where a stage may advance. A step is only possible at the minutes that
`next_step` is asked at: tests/unit/test_rollout.py has the others.

ROLLOUTS_AT_1 and ROLLOUTS_AT_1000 are the numbers of rollouts at so many decisions a minute. The
full row is 1000 and 200.
"""

import os
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from service.analysis.rollout_evidence import RolloutEvidence, RolloutRows
from service.state.rollout import (
    LONGEST_SILENCE_S,
    Rollout,
    RolloutStep,
    applied,
    next_step,
)

pytestmark = pytest.mark.statistics

COUNTS = {
    1: int(os.environ.get("ROLLOUTS_AT_1", "200")),
    1_000: int(os.environ.get("ROLLOUTS_AT_1000", "20")),
}
BASELINE = 0.2
RATES = {"better": 0.24, "equal": 0.2, "worse": 0.16, "halved": 0.1, "broken": 0.0}
OWN_AT_MOST = {("halved", 1.0): 300, ("broken", 1.0): 60,
               ("halved", 0.1): 3_500, ("broken", 0.1): 450}  # fmt: skip
"""Median of the challenger's settlements at a stop."""
MINUTE_S, DAY, WAIT, GAP = 60.0, 24 * 60, 60, 180
"""A minute in seconds; in minutes: a day, the wait for a reward, and the hours without data."""
BATCH_ROWS = 200_000


@dataclass
class End:
    """End of a rollout.

    step       the last one
    stage      of the rollout after it
    silent     advances while there was no data
    withheld   minutes at which only the want of data kept it from one
    """

    step: RolloutStep
    stage: int
    silent: int
    withheld: int


class World:
    """Decisions of two policies, minute by minute.

    share   of the challenger, of each minute
    open    whether there are decisions in each minute
    """

    def __init__(self, rates: tuple[float, float], per_minute: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rates, self._per_minute = rates, per_minute
        minutes = 16 * DAY
        self.share = np.zeros(minutes)
        self.open = np.ones(minutes, dtype=bool)
        for day in range(16):
            start = (day + 1) * DAY - int(self._rng.integers(WAIT, WAIT + GAP))
            self.open[start : start + GAP] = False

    def rows(self, begin: int, end: int, unit: int) -> tuple[RolloutRows, npt.NDArray[np.int64]]:
        """Return the decisions of some minutes, and how many each minute ends with. Each is of
        another visitor, numbered from `unit`."""
        count = self._rng.poisson(self._per_minute, end - begin) * self.open[begin:end]
        share = np.repeat(self.share[begin:end], count)
        own = self._rng.random(len(share)) < share
        click = self._rng.random(len(share)) < np.where(own, *self._rates)
        numbers = unit + np.arange(len(share))
        rows = RolloutRows(own, ~own, share, 1 - share, click.astype(float), numbers)
        return rows, np.cumsum(count)


def rolled_out(rates: tuple[float, float], per_minute: int, seed: int) -> End:
    """Roll a challenger out until it is promoted, stopped or undecided.

    Rewards are drawn for many minutes at once. After an advance those of later decisions are drawn
    again, since they have another share.
    """
    world = World(rates, per_minute, seed)
    rollout = Rollout(policy="new", baseline="old", started_at=0, stage_since=0, waiting_since=0)
    world.share[:] = rollout.share
    evidence = RolloutEvidence(rollout.margin, rollout.least_share, (0.0, 1.0))
    look, unit, newest, silent, withheld = 0, 0, -np.inf, 0, 0
    while True:
        least = int(rollout.stage_since / MINUTE_S + rollout.stage_hours * 60)
        length = min(max(BATCH_ROWS // per_minute, WAIT), DAY)
        length = min(length, least - look) if look < least else length
        length = min(length, len(world.share) - look)
        begin, end = max(look - WAIT, 0), max(look + length - WAIT, 0)
        rows, ends = world.rows(begin, end, unit)
        minutes = np.arange(look, look + length)
        marks = np.where(minutes >= WAIT, np.pad(ends, (length - len(ends), 0)), 0)
        before = deepcopy(evidence) if look >= least else evidence
        figures = evidence.add(rows, marks)
        told = np.flatnonzero(np.diff(np.pad(marks, (1, 0))) > 0)
        last = np.searchsorted(told, np.arange(length), side="right") - 1
        told_at = np.append(minutes[told] * MINUTE_S, newest)[last]
        asked = figures.fails | (figures.holds & (minutes >= least))
        asked |= minutes * MINUTE_S >= rollout.undecided_after_days * DAY * MINUTE_S
        for place in np.flatnonzero(asked).tolist():
            now, known = float(minutes[place] * MINUTE_S), float(told_at[place])
            seen = figures.at(np.array([place])).reading(known if known >= 0 else None)
            step = next_step(rollout, seen, now)
            quiet = now - known > LONGEST_SILENCE_S
            if step is None:
                withheld += quiet
                continue
            silent += quiet and step.kind in ("advance", "finish")
            rollout = applied(rollout, step)
            if step.kind != "advance":
                return End(step, rollout.stage, silent, withheld)
            world.share[minutes[place] + 1 :] = rollout.share
            evidence = before
            evidence.add(RolloutRows(*(each[: marks[place]] for each in rows)))
            unit, newest, look = unit + int(marks[place]), known, int(minutes[place]) + 1
            break
        else:
            unit, newest, look = unit + len(rows.own), float(told_at[-1]), look + length


def many(name: str, scale: float, per_minute: int) -> list[End]:
    rates = RATES[name] * scale, BASELINE * scale
    return [rolled_out(rates, per_minute, seed) for seed in range(COUNTS[per_minute])]


@pytest.mark.parametrize("per_minute", COUNTS)
@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("name", RATES)
def test_rollouts_end_as_their_challengers_deserve(
    name: str, scale: float, per_minute: int
) -> None:
    ends = many(name, scale, per_minute)
    count = len(ends)
    promoted, stopped, undecided = (
        sum(each.step.state == state for each in ends)
        for state in ("finished", "rolled_back", "undecided")
    )
    own = [each.step.own for each in ends if each.step.state == "rolled_back"]
    days = np.median([each.step.at for each in ends]) / (DAY * MINUTE_S)
    withheld = sum(each.withheld for each in ends)
    print(  # noqa: T201
        f"{name} of {BASELINE * scale:g} at {per_minute} a minute, {count}: {promoted} promoted, "
        f"{stopped} stopped, {undecided} undecided; {days:.2f} days; own settlements at a stop "
        f"{np.median(own) if own else np.nan:g}, {np.quantile(own, 0.9) if own else np.nan:g}; "
        f"withheld {withheld} minutes"
    )
    assert promoted + stopped + undecided == count
    assert sum(each.silent for each in ends) == 0
    few = binom.ppf(0.99, count, 0.01)
    if name in ("better", "equal"):
        assert stopped <= few
    else:
        assert promoted <= few
    if per_minute == 1_000:
        assert undecided <= (count if name in ("equal", "worse") else few)
        if name == "better":
            assert promoted >= 0.95 * count
            assert withheld > 0
        if (name, scale) in OWN_AT_MOST:
            # A look comes after the settlements of a whole minute.
            assert np.median(own) <= OWN_AT_MOST[name, scale] + 0.05 * per_minute
    elif (name, scale) in OWN_AT_MOST and stopped == count:
        assert np.median(own) <= OWN_AT_MOST[name, scale]


def test_figures_after_an_advance_are_those_of_all_rows() -> None:
    """A rollout ends with as many settlements as minutes have brought: none is counted twice."""
    end = rolled_out((0.24, 0.2), 100, 3)
    assert end.step.state == "finished"
    world = World((0.24, 0.2), 100, 3)
    settled = world.open[: int(end.step.at / MINUTE_S) - WAIT + 1].sum() * 100
    assert end.step.own + end.step.baseline == pytest.approx(settled, rel=0.01)
