"""How far the largest rewards of a policy lie beyond its usual ones: within a wide range a single
false report can outweigh all honest ones.

The size of a reward is its distance from the one that stands for nothing: the default, or where
there is none the reward of the range that is nearest to 0. Rewards of no size, such as misses, are
left out. Each process holds its own in memory: 500 numbers a policy.
"""

from collections import deque
from statistics import median

from service.definition.experiment import RewardRules

MEDIAN_REWARDS = 500
"""Latest rewards with a size, of which the median is taken."""

LEAST_SIZED_REWARDS = 20
"""Least rewards with a size before a ratio is reported."""

BLOCK = 8_192
"""Rewards with a size after which the largest one of the block before is forgotten: it is that of
the latest 8,192 to 16,384."""

EXTREME_RATIO = 100.0
"""Ratio from which on one reward counts as much as a hundred usual ones."""


class RewardSizes:
    """Sizes of one policy's rewards."""

    __slots__ = ("_before", "_count", "_largest", "_latest")

    def __init__(self) -> None:
        self._latest = deque[float](maxlen=MEDIAN_REWARDS)
        self._largest = self._before = 0.0
        self._count = 0

    def take(self, reward: float, rules: RewardRules) -> None:
        size = abs(reward - rules.nothing)
        if not size:
            return
        if self._count == BLOCK:
            self._before, self._largest, self._count = self._largest, 0.0, 0
        self._count += 1
        self._largest = max(self._largest, size)
        self._latest.append(size)

    @property
    def largest(self) -> float:
        return max(self._largest, self._before)

    @property
    def usual(self) -> float | None:
        """The median; None: too few rewards."""
        return median(self._latest) if len(self._latest) >= LEAST_SIZED_REWARDS else None

    @property
    def ratio(self) -> float | None:
        """The largest size over the median; None: too few rewards."""
        usual = self.usual
        return None if usual is None else self.largest / usual

    @property
    def warning(self) -> str | None:
        """What to do about an extreme ratio, for people; None where there is none."""
        ratio, usual = self.ratio, self.usual
        if ratio is None or usual is None or ratio < EXTREME_RATIO:
            return None
        return (
            f"a reward of size {self.largest:g} counts as {ratio:,.0f} of the usual size "
            f"{usual:g}: one false report can outweigh all others. Narrow reward.range to what "
            "honest rewards can be"
        )
