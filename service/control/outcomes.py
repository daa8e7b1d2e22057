"""The decisions of a log whose policy was drawn, with what they earned: as columns, in order."""

from array import array
from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from service.control.rewards import Defined, Rewards
from service.control.sample_ratio import Counts, ShownArms
from service.control.sequences import Array, Index
from service.errors import StoreError, UnknownSchema
from service.log.reading import SILENT, Progress
from service.log.replay import row_pages
from service.log.stores import Store
from service.log.stores.base import KeptRow
from service.serving.rederive import is_imported, is_whole, model_version
from service.state.events import Decision, decode_decision

UNREADABLE = "their rows are damaged"
OPEN = "their reward may still come, or one before them is waited for"
NOT_SHOWN = "they were made ahead and never shown"
NAMED = "their requests named the policy"
IMPORTED = "they were imported"
EARLIER = "made before the log's origin, of which the events were trimmed"


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
    shown      arms of all decisions against their propensities
    end        unix seconds of the last that the log holds
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
    shown: ShownArms
    end: float

    def __len__(self) -> int:
        return len(self.policy)

    def of(self, names: set[str]) -> npt.NDArray[np.bool_]:
        """Whether one of these policies decided, (n,)."""
        return np.isin(
            self.policy, [place for place, name in enumerate(self.names) if name in names]
        )

    def shares(self, names: set[str], defined: list[Defined]) -> Array:
        """The chance that one of these policies is drawn, at each decision, (n,)."""
        chances = list[float]()
        for each in defined:
            shares = {name: policy.share for name, policy in each.definition.policies.items()}
            chances.append(sum(shares.get(name, 0.0) for name in names) / sum(shares.values()))
        held = np.searchsorted([each.position for each in defined], self.position, "right") - 1
        return np.array(chances)[np.maximum(held, 0)]

    def assigned(self, defined: list[Defined]) -> Counts:
        """Visitors by policy, at the first decision of each, against shares."""
        first = np.unique(self.unit, return_index=True)[1]
        counts = Counts(self.names)
        for place, name in enumerate(self.names):
            chance = self.shares({name}, defined)[first]
            drawn = float((self.policy[first] == place).sum())
            counts.sums[:, place] = drawn, chance.sum(), (chance * (1 - chance)).sum()
        return counts


async def read_outcomes(
    store: Store, experiment: str, progress: Progress = SILENT
) -> tuple[Outcomes, Rewards]:
    """Read the log twice: events, then rows. Raises UnknownSchema, Damaged or LogGap."""
    rewards = Rewards()
    await rewards.read(store, experiment, progress)
    rows = _Rows(rewards)
    async for page in row_pages(store, experiment):
        for row in page:
            rows.take(row)
        progress.tell(f"decisions read: {page[-1].number:,}")
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
        try:
            decision = decode_decision(row.payload)
        except UnknownSchema:
            raise
        except StoreError:
            self._left[UNREADABLE] += 1
            return
        version = model_version(decision)
        if version is None or not is_whole(decision):
            self._left[UNREADABLE] += 1
        elif is_imported(decision):
            self._left[IMPORTED] += 1
        elif version.position < self._rewards.begins:
            self._left[EARLIER] += 1
        else:
            self._shown.add(decision)
            if decision.assignment < 1:
                self._add(decision, version.position)
            else:
                self._left[NAMED] += 1

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
            shown=self._shown,
            end=end,
        )
