"""The decisions of a log that can be evaluated, with their rewards: held as columns, not as rows.

A first pass reads the events for rewards, a second the decision rows. A settled arm takes 24 bytes,
a row about 50; the rows themselves are read again when they are evaluated.
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from math import nan

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
from service.analysis.request import Selection
from service.log.reading import SILENT, Progress
from service.log.stores import Store
from service.log.stores.base import KeptRow
from service.state.decisions import Decision, is_imported


@dataclass
class SelectedDecisions:
    """Decisions to evaluate, in the order of the positions that they were made at.

    numbers, positions   of their rows, and of the state that made each
    rewards              of the arm shown first, at the log's end
    left_out             how many others of the selection were left out, by reason
    erased               positions of events that were erased
    starts               positions at which policies with a share, and shadows, began as they are
    """

    numbers: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    left_out: Counter[str] = field(default_factory=Counter)
    erased: set[int] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def since(self, position: int) -> "SelectedDecisions":
        """Those made at a position or later."""
        first = int(np.searchsorted(self.positions, position))
        return replace(
            self,
            numbers=self.numbers[first:],
            positions=self.positions[first:],
            rewards=self.rewards[first:],
        )


UNKNOWN = "their outcome is unknown (no reward, no default, or never shown)"
CANDIDATES = "imported without the arms that could have been shown"


async def choose(
    store: Store, experiment: str, selection: Selection, progress: Progress = SILENT
) -> SelectedDecisions:
    """Read the log twice and choose what to evaluate.

    Decisions count up to the first that still waits for its reward: after it there would be clicks
    alone, since a click comes before the default. All before it count, whatever their reward.
    """
    rewards = Rewards()
    await rewards.read(store, experiment, progress)
    kept = _RowSelection(rewards, selection)
    async for page in decision_pages(store, experiment, progress):
        for row in page:
            kept.take(row)
    return kept.chosen()


class _RowSelection:
    """What the choice needs of the rows that were read."""

    def __init__(self, rewards: Rewards, selection: Selection) -> None:
        self._rewards, self._selection = rewards, selection
        self._numbers, self._positions = array("q"), array("q")
        self._times, self._values = array("d"), array("d")
        self._waits: list[tuple[float, float]] = []  # reward_by and at of unrewarded ones
        self._left: Counter[str] = Counter()
        self._end = rewards.end

    def take(self, row: KeptRow) -> None:
        """Raises UnknownSchema."""
        found = read_decision(row)
        if found is None:
            self._left[UNREADABLE] += 1
            return
        decision, position = found
        imported, first = is_imported(decision), decision.shown[0]
        selected = _is_selected(decision, self._selection)
        if decision.schema_version < self._rewards.first_schema:
            self._left[DELETED] += selected
            return
        if not imported and position < self._rewards.begins:
            self._left[EARLIER] += selected
            return
        self._end = max(self._end, decision.at)
        settled = self._rewards.of(decision.id, first.arm)
        if settled is None and not imported:
            self._waits.append((decision.reward_by, decision.at))
        if not selected:
            return
        if imported and len(decision.arms) == 1 and first.propensity < 1:
            self._left[CANDIDATES] += 1
            return
        if settled is not None:
            value = settled[0]
        elif imported or decision.deferred or self._rewards.default is None:
            value = nan  # a deferred one may never have been shown
        else:
            value = self._rewards.default  # overdue, even if no service has logged it yet
        self._numbers.append(row.number)
        self._times.append(decision.at)
        self._positions.append(settled[1] - 1 if imported and settled else position)
        self._values.append(value)

    def chosen(self) -> SelectedDecisions:
        cut = min((at for by, at in self._waits if by > self._end), default=np.inf)
        numbers, positions = np.array(self._numbers, np.int64), np.array(self._positions, np.int64)
        values, closed = np.array(self._values), np.array(self._times) < cut
        known = closed & ~np.isnan(values)
        self._left[OPEN] += int((~closed).sum())
        self._left[UNKNOWN] += int((closed & ~known).sum())
        rows = np.flatnonzero(known)
        if self._selection.newest is not None:
            rows = rows[-self._selection.newest :]
        rows = rows[np.argsort(positions[rows], kind="stable")]
        starts = {name: start.position for name, start in self._rewards.starts().items()}
        return SelectedDecisions(
            numbers[rows],
            positions[rows],
            values[rows],
            +self._left,
            self._rewards.erased,
            starts,
        )


def _is_selected(decision: Decision, selection: Selection) -> bool:
    return (
        (selection.since is None or decision.at >= selection.since)
        and (selection.until is None or decision.at < selection.until)
        and (selection.logged_by is None or decision.policy in selection.logged_by)
    )
