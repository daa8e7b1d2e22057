"""The decisions of a log whose policy was drawn, with what they earned: as columns, in order."""

from array import array
from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from service.analysis.history import (
    DELETED,
    EARLIER,
    OPEN,
    UNREADABLE,
    Rewards,
    decision_pages,
    read_decision,
)
from service.analysis.sample_ratio import Counts, ShownArms
from service.analysis.sequences import Array, Index
from service.log.reading import SILENT, Progress
from service.log.stores import Store
from service.log.stores.base import KeptRow
from service.state.decisions import Decision, is_imported

NOT_SHOWN = "they were made ahead and never shown"
NOT_DRAWN = "their policy was not drawn: the request named it, or it had all the traffic"
IMPORTED = "they were imported"


@dataclass(frozen=True)
class Outcomes:
    """Decisions in the order of their times, up to the oldest that still waits for its reward:
    after it there would be clicks alone, since a click comes before the default.

    names      of all policies; `policy` (n,) counts in them
    position   (n,) of the state that decided
    at         (n,) unix seconds
    chance     (n,) with which the policy was drawn
    reward     (n,) of all arms shown, at the log's end
    unit       (n,) a number for each visitor; decisions without one have a number each
    slots      of the longest slate
    left_out   how many others, by reason
    drawn      what the rows hold against what was drawn, of all decisions: the arms shown, by
               their propensities, and visitors at their first decision, by the shares of policies
    """

    names: list[str]
    policy: Index
    position: Index
    at: Array
    chance: Array
    reward: Array
    unit: Index
    slots: int
    left_out: Counter[str]
    drawn: dict[str, Counts]

    def __len__(self) -> int:
        return len(self.policy)

    def of(self, names: set[str]) -> npt.NDArray[np.bool_]:
        """Whether one of these policies decided, (n,)."""
        return np.isin(
            self.policy, [place for place, name in enumerate(self.names) if name in names]
        )


async def read_outcomes(
    store: Store, experiment: str, progress: Progress = SILENT
) -> tuple[Outcomes, Rewards]:
    """Read the log twice: events, then rows. Raises UnknownSchema, Damaged or LogGap."""
    rewards = Rewards()
    await rewards.read(store, experiment, progress)
    rows = _Rows(rewards)
    async for page in decision_pages(store, experiment, progress):
        for row in page:
            rows.take(row)
    return rows.outcomes(), rewards


class _Rows:
    """Columns of the rows that were read; `arm` and `arm_row` have a place for each shown arm."""

    def __init__(self, rewards: Rewards) -> None:
        self._rewards = rewards
        self._names, self._units = dict[str, int](), dict[str, int]()
        self._policy, self._position, self._unit = array("q"), array("q"), array("q")
        self._at, self._by, self._chance = array("d"), array("d"), array("d")
        self._slots, self._deferred = array("q"), array("b")
        self._arm, self._arm_row = array("q"), array("q")
        self._left, self._shown = Counter[str](), ShownArms()

    def take(self, row: KeptRow) -> None:
        """Raises UnknownSchema."""
        found, defined = read_decision(row), self._rewards.defined
        if found is None:
            self._left[UNREADABLE] += 1
            return
        decision, position = found
        if is_imported(decision):
            self._left[IMPORTED] += 1
        elif position < self._rewards.begins:
            self._left[EARLIER] += 1
        elif not defined or position < defined[0].position:
            self._left[DELETED] += 1
        else:
            self._shown.add(decision)
            if decision.assignment < 1:
                self._add(decision, position)
            else:
                self._left[NOT_DRAWN] += 1

    def _add(self, decision: Decision, position: int) -> None:
        number = len(self._policy)
        unit = f"#{number}" if decision.unit is None else decision.unit
        self._policy.append(self._names.setdefault(decision.policy, len(self._names)))
        self._position.append(position)
        self._unit.append(self._units.setdefault(unit, len(self._units)))
        self._at.append(decision.at)
        self._by.append(decision.reward_by)
        self._chance.append(decision.assignment)
        self._slots.append(len(decision.shown))
        self._deferred.append(decision.deferred)
        for shown in decision.shown:
            self._arm.append(hash((decision.id, shown.arm)))
            self._arm_row.append(number)

    def outcomes(self) -> Outcomes:
        at, count = np.array(self._at), len(self._at)
        row, slots = np.array(self._arm_row, np.int64), np.array(self._slots, np.int64)
        value, settled = self._rewards.latest(np.array(self._arm, np.int64))
        known = np.bincount(row, settled, count)
        end = max(self._rewards.end, float(at.max(initial=0.0)))
        waits = (known < slots) & (np.array(self._by) > end)
        closed = at < at[waits].min(initial=inf)
        shown = (known > 0) | ~np.array(self._deferred, dtype=bool)
        self._left[OPEN] += int((~closed).sum())
        self._left[NOT_SHOWN] += int((closed & ~shown).sum())
        # Once an arm is settled, the others without a reward were not seen.
        missed = slots * (self._rewards.default or 0.0)
        reward = np.where(known > 0, np.bincount(row, value, count), missed)
        kept = np.flatnonzero(closed & shown)
        kept = kept[np.argsort(at[kept], kind="stable")]
        return Outcomes(
            names=list(self._names),
            policy=np.array(self._policy, np.int64)[kept],
            position=np.array(self._position, np.int64)[kept],
            at=at[kept],
            chance=np.array(self._chance)[kept],
            reward=reward[kept],
            unit=np.array(self._unit, np.int64)[kept],
            slots=int(slots.max(initial=1)),
            left_out=+self._left,
            drawn={"arm": self._shown.counts, "policy": self._assigned()},
        )

    def _assigned(self) -> Counts:
        """Visitors by the policy of their first decision, whatever came of it."""
        first = np.unique(np.array(self._unit, np.int64), return_index=True)[1]
        policy = np.array(self._policy, np.int64)[first]
        positions = np.array(self._position, np.int64)[first]
        counts = Counts(list(self._names))
        for place, name in enumerate(self._names):
            chance = self._rewards.shares({name}, positions)
            drawn = float((policy == place).sum())
            counts.sums[:, place] = drawn, chance.sum(), (chance * (1 - chance)).sum()
        return counts
