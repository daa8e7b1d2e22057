"""The decisions of a log with what they earned: as columns, in order."""

from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from service.analysis import sample_ratio
from service.analysis.definitions import Definitions
from service.analysis.history import (
    BEFORE_ORIGIN,
    DAMAGED_ROWS,
    DELETED,
    IS_DEFERRED,
    IS_IMPORTED,
    OPEN,
    DecisionHistory,
)
from service.analysis.sample_ratio import Counts, Mismatch
from service.analysis.sequences import Array, IntegerArray
from service.definition.experiment import RewardRules

NOT_SHOWN = "they were made ahead and never shown"
NOT_DRAWN = "their policy was not drawn: the request named it, or it had all the traffic"
FROM_ELSEWHERE = "they were imported"


@dataclass(frozen=True)
class Outcomes:
    """Decisions in the order of their times, up to the oldest that still waits for its reward:
    after it there would be clicks alone, since a click comes before the default.

    names      of all policies; `policy` (n,) counts in them
    version    (n,) of the policy, by number
    position   (n,) of the state that decided
    at         (n,) unix seconds
    chance     (n,) with which the policy was drawn
    reward     (n,) of all arms shown, at the log's end
    unit       (n,) a number for each visitor; decisions without one have a number each
    off        (n,) rules that were off, a bit each, as the history has them
    segments   (n,) those that it is in, a bit each, as the history has them
    slots      of the longest slate
    left_out   how many others, by reason
    drawn      what the rows hold against what was drawn, of all decisions: the arms shown, by
               their propensities, and visitors at their first decision, by the shares of policies
    """

    names: list[str]
    policy: IntegerArray
    version: IntegerArray
    position: IntegerArray
    at: Array
    chance: Array
    reward: Array
    unit: IntegerArray
    off: IntegerArray
    segments: IntegerArray
    slots: int
    left_out: Counter[str]
    drawn: dict[str, Counts]

    def __len__(self) -> int:
        return len(self.policy)

    def of(self, names: set[str]) -> npt.NDArray[np.bool_]:
        """Say of each row whether one of these policies decided, (n,)."""
        return np.isin(
            self.policy, [place for place, name in enumerate(self.names) if name in names]
        )

    def limits(self, rules: RewardRules) -> tuple[float, float]:
        """Return the least and the largest reward that a decision can have."""
        low, high = rules.limits
        return min(low, low * self.slots), max(high, high * self.slots)

    def mismatch(self) -> Mismatch | None:
        """Return what the rows show too often or too rarely; None: they hold what was drawn."""
        alpha = sample_ratio.FALSE_ALARM_CHANCE / len(self.drawn)
        found = [counts.mismatch(what, alpha) for what, counts in self.drawn.items()]
        return next(filter(None, found), None)


def outcomes_of(history: DecisionHistory, *, named: bool = False) -> Outcomes:
    """Return what decisions earned, by all that was read of a log. named: also those whose policy
    was not drawn."""
    rows, definitions = history.decisions, history.definitions
    left = Counter({DAMAGED_ROWS: history.unreadable})
    taken = np.ones(len(rows), dtype=bool)
    since = definitions.since if definitions else inf
    for reason, wrong in (
        (FROM_ELSEWHERE, rows.has(IS_IMPORTED)),
        (BEFORE_ORIGIN, rows.position < history.begins),
        (DELETED, rows.position < since),
        (NOT_DRAWN, (rows.chance >= 1) & (not named)),
    ):
        left[reason] = int((taken & wrong).sum())
        taken &= ~wrong
    of_row = np.repeat(np.arange(len(rows)), rows.slots)
    told = history.settlements(history.arms)
    known = np.bincount(of_row, told.settled, len(rows))
    earned = np.bincount(of_row, np.nan_to_num(told.value), len(rows))
    end = max(history.told_until, float(rows.at[taken].max(initial=0.0)))
    waits = taken & (known < rows.slots) & (rows.reward_by > end)
    closed = taken & (rows.at < rows.at[waits].min(initial=inf))
    shown = (known > 0) | ~rows.has(IS_DEFERRED)
    left[OPEN] = int((taken & ~closed).sum())
    left[NOT_SHOWN] = int((closed & ~shown).sum())
    # Once an arm is settled, the others without a reward were not seen.
    missed = rows.slots * (definitions.default or 0.0)
    kept = np.flatnonzero(closed & shown)
    kept = kept[np.argsort(rows.at[kept], kind="stable")]
    names = list(history.names)
    drawn = taken & (rows.chance < 1)
    columns = (column[drawn] for column in (rows.unit, rows.policy, rows.position))
    return Outcomes(
        names=names,
        policy=rows.policy[kept],
        version=rows.version[kept],
        position=rows.position[kept],
        at=rows.at[kept],
        chance=rows.chance[kept],
        reward=np.where(known > 0, earned, missed)[kept],
        unit=np.unique(rows.unit[kept], return_inverse=True)[1],
        off=rows.off[kept],
        segments=rows.segments[kept],
        slots=int(rows.slots[taken].max(initial=1)),
        left_out=+left,
        drawn={"arm": history.shown.counts, "policy": _assigned(definitions, names, *columns)},
    )


def _assigned(
    definitions: Definitions,
    names: list[str],
    unit: IntegerArray,
    policy: IntegerArray,
    position: IntegerArray,
) -> Counts:
    """Count visitors by the policy of their first decision, whatever came of it."""
    first = np.unique(unit, return_index=True)[1]
    counts = Counts(names)
    for place, name in enumerate(names):
        chance = definitions.shares({name}, position[first])
        drawn = float((policy[first] == place).sum())
        counts.sums[:, place] = drawn, chance.sum(), (chance * (1 - chance)).sum()
    return counts
