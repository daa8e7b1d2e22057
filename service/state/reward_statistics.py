"""Sums of settled rewards: of a policy, and of each arm that it showed."""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt

from service.bandits.heads.base import Stored, pack_names, unpack_names
from service.definition.experiment import RewardRules
from service.state.events import Outcome

INTERVAL_DEVIATIONS = 1.96
"""Standard errors on either side of a 95 percent interval."""

MOST_ARMS = 100_000
"""Arms with sums of their own per policy: 12 MB. A catalogue that is renewed every day would have
ever more, so that those of retired arms go first."""


@dataclass
class RewardTotals:
    """Rewards settled by one policy, from a log position on: count, sum, sum of squares."""

    begins: int
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def move(self, outcome: Outcome) -> None:
        if outcome.since is not None and outcome.since < self.begins:
            return
        was, reward = outcome.was or 0.0, outcome.learned or 0.0
        self.count += counted(outcome)
        self.total += reward - was
        self.squares += reward * reward - was * was
        if not isfinite(self.squares):
            raise OverflowError(f"a reward of {reward:g} is too large to be counted")

    def add(self, rewards: Sequence[float]) -> None:
        """Count first rewards, as `move` does one after the other."""
        total, squares = self.total, self.squares
        for reward in rewards:
            total += reward
            squares += reward * reward
        if not isfinite(squares):
            raise OverflowError("a reward is too large to be counted")
        self.count += len(rewards)
        self.total, self.squares = total, squares


def counted(outcome: Outcome) -> int:
    """Return the change of the number of settled arms."""
    return (outcome.was is None) - outcome.withdrawn


def spread(sums: RewardTotals, rules: RewardRules) -> tuple[float, float]:
    """Center and half of a 95 percent interval of the mean reward. count > 0.

    Agresti & Coull (1998) add observations, here two at each end of the reward's range: without
    them equal rewards would have no interval. Sums of rewards have no range.
    """
    low, high = rules.range
    added = [low, low, high, high] if rules.aggregation != "sum" else []
    n = sums.count + len(added)
    mean = (sums.total + sum(added)) / n
    squares = (sums.squares + sum(end * end for end in added)) / n
    return mean, INTERVAL_DEVIATIONS * sqrt(max(squares - mean * mean, 0.0) / n)


def interval(sums: RewardTotals, rules: RewardRules) -> list[float] | None:
    """Return the interval within the range of rewards; None without rewards."""
    if sums.count == 0:
        return None
    mean, half = spread(sums, rules)
    if rules.aggregation == "sum":
        return [mean - half, mean + half]
    low, high = rules.range
    return [max(low, mean - half), min(high, mean + half)]


class ArmRewardSums:
    """Sums for each catalogue arm that a policy showed, from a log position on.

    They lie in columns by row, so that ten thousand arms are sorted without an object for each.
    """

    def __init__(self, begins: int) -> None:
        self.begins = begins
        self.rows: dict[str, int] = {}
        self._counts, self._totals, self._squares = array("q"), array("d"), array("d")

    def move(self, outcome: Outcome, catalogue: Collection[str]) -> None:
        """Arms outside the catalogue, whose number has no bound, have no sums of their own."""
        since = outcome.since
        if outcome.inline or (since is not None and since < self.begins):
            return
        row = self.rows.get(outcome.arm)
        if row is None and not outcome.withdrawn:
            row = self._new_row(outcome.arm, catalogue)
        if row is None:
            return
        reward, before = outcome.learned or 0.0, outcome.was or 0.0
        self._counts[row] += counted(outcome)
        self._totals[row] += reward - before
        self._squares[row] += reward * reward - before * before

    def _new_row(self, arm: str, catalogue: Collection[str]) -> int | None:
        """None where there is no room."""
        if len(self.rows) >= MOST_ARMS and len(catalogue) <= MOST_ARMS // 2:
            self._keep([each for each in self.rows if each in catalogue])
        if len(self.rows) >= MOST_ARMS:
            return None
        for column in (self._counts, self._totals, self._squares):
            column.append(0)
        return self.rows.setdefault(arm, len(self.rows))

    def _keep(self, arms: list[str]) -> None:
        columns = self.columns()[:, [self.rows[arm] for arm in arms]]
        self._replace(arms, *columns)

    def _replace(
        self, arms: Iterable[str], counts: Stored, totals: Stored, squares: Stored
    ) -> None:
        self.rows = {arm: row for row, arm in enumerate(arms)}
        self._counts = array("q", counts.astype(np.int64).tolist())
        self._totals, self._squares = array("d", totals.tolist()), array("d", squares.tolist())

    def columns(self) -> npt.NDArray[np.float64]:  # (3, len(rows))
        """Return counts, sums and sums of squares, by row."""
        return np.array([self._counts, self._totals, self._squares], dtype=float)

    # -- snapshots -----------------------------------------------------------------------------

    def arrays(self) -> dict[str, Stored]:
        return {
            "begins": np.array([self.begins]),
            "names": pack_names(self.rows),
            "counts": np.array(self._counts),
            "totals": np.array(self._totals),
            "squares": np.array(self._squares),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, Stored]) -> "ArmRewardSums":
        """Do the inverse of `arrays`."""
        found = cls(int(arrays["begins"][0]))
        names = unpack_names(arrays["names"])
        found._replace(names, arrays["counts"], arrays["totals"], arrays["squares"])
        return found
