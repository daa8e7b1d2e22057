"""How new the arms of a catalogue are: when each came, and how often a reward of it settled."""

from collections.abc import Collection, Mapping
from typing import Any, Self

from service.state.events import Outcome


class Newness:
    """Ages and settlements of the arms of one catalogue. An arm that is removed and comes again is
    new again. Those that came with the experiment are not new by their age.

    came      of each arm that came later, when
    settled   rewards of each arm that settled, whatever policy showed it
    moved     number of settlements so far: while it stays, so do all counts
    """

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.settled: dict[str, int] = {}
        self.moved = 0

    def follow(self, before: Collection[str], after: Collection[str], at: float) -> None:
        """Follow a catalogue that was replaced at this time."""
        for arm in before:
            if arm not in after:
                self.remove(arm)
        self.came |= {arm: at for arm in after if arm not in before}

    def add(self, arm: str, at: float) -> None:
        self.came[arm] = at

    def remove(self, arm: str) -> None:
        self.came.pop(arm, None)
        self.settled.pop(arm, None)

    def settle(self, outcome: Outcome, catalogue: Collection[str]) -> None:
        """Count the first reward of an arm of a decision, or its withdrawal."""
        change = (outcome.was is None) - outcome.withdrawn
        if change and not outcome.inline and outcome.arm in catalogue:
            self.settled[outcome.arm] = self.settled.get(outcome.arm, 0) + change
            self.moved += 1

    # -- snapshots -----------------------------------------------------------------------------

    def members(self) -> dict[str, dict[str, Any]]:
        """Return copies of the large members of a snapshot."""
        return {"came": dict(self.came), "settled": dict(self.settled)}

    @classmethod
    def restore(cls, came: Mapping[str, float], settled: Mapping[str, int]) -> Self:
        """Do the inverse of `members`."""
        found = cls()
        found.came, found.settled = dict(came), dict(settled)
        return found
