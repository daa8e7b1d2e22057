"""Sums of the rewards that were settled: of a policy, and of each arm that it showed."""

from array import array
from collections.abc import Container, Iterable, Mapping, Sized
from math import hypot, isfinite, sqrt
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from service.bandits.posterior.base import pack_names, unpack_names
from service.definition.experiment import RewardRules
from service.state.events import Outcome

Z = 1.96
"""Standard errors on either side of a 95 percent interval."""

MOST_ARMS = 100_000
"""Arms that are counted one by one for each policy: 12 MB of ids and sums. Ids of a catalogue that
is renewed every day have no end, so that those of retired arms go first."""


class RewardSums:
    """Rewards settled by one policy, from a log position on: count, sum, sum of squares."""

    def __init__(
        self, begins: int, count: int = 0, total: float = 0.0, squares: float = 0.0
    ) -> None:
        self.begins, self.count, self.total, self.squares = begins, count, total, squares

    def move(self, outcome: Outcome) -> None:
        if outcome.since is not None and outcome.since < self.begins:
            return
        was, reward = outcome.was or 0.0, outcome.learned or 0.0
        self.count += counted(outcome)
        self.total += reward - was
        self.squares += reward * reward - was * was
        if not isfinite(self.squares):
            raise OverflowError(f"a reward of {reward:g} is too large to be counted")


def counted(outcome: Outcome) -> int:
    """By how much it changes the number of arms that are settled."""
    return (outcome.was is None) - outcome.withdrawn


def spread(tally: RewardSums, rules: RewardRules) -> tuple[float, float]:
    """Center and half of a 95 percent interval of the mean reward. count > 0.

    Agresti & Coull 1998's added observations, two at each end of the reward's range, keep it honest
    where every reward was the same. Sums of rewards have no range.
    """
    low, high = rules.range
    added = [low, low, high, high] if rules.aggregation != "sum" else []
    n = tally.count + len(added)
    mean = (tally.total + sum(added)) / n
    squares = (tally.squares + sum(end * end for end in added)) / n
    return mean, Z * sqrt(max(squares - mean * mean, 0.0) / n)


def interval(tally: RewardSums, rules: RewardRules) -> list[float] | None:
    """The same, within the range of rewards; None of no reward."""
    if tally.count == 0:
        return None
    mean, half = spread(tally, rules)
    if rules.aggregation == "sum":
        return [mean - half, mean + half]
    low, high = rules.range
    return [max(low, mean - half), min(high, mean + half)]


def lead(
    own: RewardSums, others: Iterable[tuple[str, RewardSums]], rules: RewardRules
) -> dict[str, Any] | None:
    """How far a policy is ahead of the best of the others, with a 95 percent interval of the
    difference of the two means. None where either has no reward."""
    rivals = [(tally.total / tally.count, name, tally) for name, tally in others if tally.count]
    if not rivals or not own.count:
        return None
    mean, name, rival = max(rivals, key=itemgetter(0))
    ahead = own.total / own.count - mean
    half = hypot(spread(own, rules)[1], spread(rival, rules)[1])
    return {"over": name, "difference": ahead, "interval": [ahead - half, ahead + half]}


class Catalogue(Container[str], Sized, Protocol):
    """Ids of the arms that can be chosen."""


class ArmRewardSums:
    """The same for each catalogue arm that a policy showed, from a log position on.

    Sums lie in columns by row, so that ten thousand arms are sorted without an object for each.
    """

    def __init__(self, begins: int) -> None:
        self.begins = begins
        self.rows: dict[str, int] = {}
        self._counts, self._totals, self._squares = array("q"), array("d"), array("d")

    def move(self, outcome: Outcome, catalogue: Catalogue) -> None:
        """Arms outside the catalogue, whose ids have no bound, are not counted by arm."""
        settled, since = outcome.settled, outcome.since
        if settled.inline or (since is not None and since < self.begins):
            return
        row = self.rows.get(settled.arm)
        if row is None and outcome.withdrawn:
            return
        if row is None:
            row = self._new_row(settled.arm, catalogue)
        if row < 0:
            return
        reward, before = outcome.learned or 0.0, outcome.was or 0.0
        self._counts[row] += counted(outcome)
        self._totals[row] += reward - before
        self._squares[row] += reward * reward - before * before

    def _new_row(self, arm: str, catalogue: Catalogue) -> int:
        """-1 where there is no room."""
        if len(self.rows) >= MOST_ARMS and len(catalogue) <= MOST_ARMS // 2:
            self._keep([each for each in self.rows if each in catalogue])
        if len(self.rows) >= MOST_ARMS:
            return -1
        for column in (self._counts, self._totals, self._squares):
            column.append(0)
        return self.rows.setdefault(arm, len(self.rows))

    def _keep(self, arms: list[str]) -> None:
        kept = [self.rows[arm] for arm in arms]
        self._counts = array("q", [self._counts[row] for row in kept])
        self._totals = array("d", [self._totals[row] for row in kept])
        self._squares = array("d", [self._squares[row] for row in kept])
        self.rows = {arm: row for row, arm in enumerate(arms)}

    def columns(self) -> npt.NDArray[np.float64]:  # (3, len(rows))
        """Counts, sums and sums of squares, by row."""
        return np.array([self._counts, self._totals, self._squares], dtype=float)

    # -- snapshots -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "begins": np.array([self.begins]),
            "names": pack_names(self.rows),
            "counts": np.array(self._counts),
            "totals": np.array(self._totals),
            "squares": np.array(self._squares),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "ArmRewardSums":
        """The inverse of `arrays`."""
        found = cls(int(arrays["begins"][0]))
        found.rows = {arm: row for row, arm in enumerate(unpack_names(arrays["names"]))}
        found._counts = array("q", arrays["counts"].tolist())
        found._totals = array("d", arrays["totals"].tolist())
        found._squares = array("d", arrays["squares"].tolist())
        return found
