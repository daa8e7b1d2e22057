"""The decisions of a log that can be evaluated, with their rewards."""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np
import numpy.typing as npt

from service.analysis.history import (
    BEFORE_ORIGIN,
    DAMAGED_ROWS,
    DELETED,
    IS_DEFERRED,
    IS_IMPORTED,
    LACKS_PROBABILITIES,
    OPEN,
    DecisionHistory,
)
from service.analysis.request import Selection


@dataclass
class SelectedDecisions:
    """Decisions to evaluate, in the order of the positions that they were made at.

    numbers, positions   of their rows, and of the state that made each
    rewards              of the arm shown first, at the log's end
    left_out             how many others of the selection were left out, by reason
    erased               positions of events that were erased
    starts               positions at which policies with a share, and shadows, began as they are
    open_from            position of the first decision that does not count yet; None: all do
    """

    numbers: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    left_out: Counter[str] = field(default_factory=Counter)
    erased: set[int] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    open_from: int | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def since(self, position: int) -> "SelectedDecisions":
        """Return the decisions made at a position or later."""
        return self._part(slice(int(np.searchsorted(self.positions, position)), None))

    def before(self, position: int) -> "SelectedDecisions":
        """Return the decisions made at earlier positions."""
        return self._part(slice(int(np.searchsorted(self.positions, position))))

    def _part(self, rows: slice) -> "SelectedDecisions":
        return replace(
            self,
            numbers=self.numbers[rows],
            positions=self.positions[rows],
            rewards=self.rewards[rows],
        )

    def rewards_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the rewards of some of these, by the numbers of their rows."""
        order = np.argsort(self.numbers)
        return self.rewards[order[np.searchsorted(self.numbers[order], numbers)]]


UNKNOWN = "their outcome is unknown (no reward, no default, or never shown)"
CANDIDATES = "imported without the arms that could have been shown"


def selected(history: DecisionHistory, selection: Selection) -> SelectedDecisions:
    """Choose what to evaluate of all that was read of a log.

    Decisions count up to the first that still waits for its reward: after it there would be clicks
    alone, since a click comes before the default. All before it count, whatever their reward.
    """
    rows, definitions = history.decisions, history.definitions
    left = Counter({DAMAGED_ROWS: history.unreadable})
    imported, asked = rows.has(IS_IMPORTED), _asked(history, selection)
    held = np.ones(len(rows), dtype=bool)
    for reason, wrong in (
        (DELETED, rows.schema < definitions.first_schema),
        (BEFORE_ORIGIN, ~imported & (rows.position < history.begins)),
    ):
        left[reason] = int((asked & held & wrong).sum())
        held &= ~wrong
    told = history.settlements(history.arms[rows.first_arm])
    end = max(history.told_until, float(rows.at[held].max(initial=0.0)))
    waits = held & ~told.settled & ~imported & (rows.reward_by > end)
    alone = asked & held & rows.has(LACKS_PROBABILITIES)
    left[CANDIDATES] = int(alone.sum())
    asked &= held & ~alone
    # A deferred one may never have been shown. Another is overdue, even if no service logged it.
    default = nan if definitions.default is None else definitions.default
    missed = np.where(imported | rows.has(IS_DEFERRED), nan, default)
    values = np.where(told.settled, told.value, missed)
    closed = rows.at < rows.at[waits].min(initial=inf)
    known = ~np.isnan(values)
    left[OPEN] = int((asked & ~closed).sum())
    left[UNKNOWN] = int((asked & closed & ~known).sum())
    positions = np.where(imported & told.settled, told.first - 1, rows.position)
    found = np.flatnonzero(asked & closed & known)
    if selection.newest is not None:
        found = found[-selection.newest :]
    found = found[np.argsort(positions[found], kind="stable")]
    return SelectedDecisions(
        rows.number[found],
        positions[found],
        values[found],
        +left,
        history.erased,
        {name: start.position for name, start in definitions.starts().items()},
        int(opened.min()) if len(opened := positions[asked & ~closed]) else None,
    )


def _asked(history: DecisionHistory, selection: Selection) -> npt.NDArray[np.bool_]:
    """Return whether a selection has each decision, (n,)."""
    rows = history.decisions
    found = np.ones(len(rows), dtype=bool)
    if selection.since is not None:
        found &= rows.at >= selection.since
    if selection.until is not None:
        found &= rows.at < selection.until
    if selection.logged_by is not None:
        places = [place for name, place in history.names.items() if name in selection.logged_by]
        found &= np.isin(rows.policy, places)
    return found
