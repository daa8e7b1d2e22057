"""The scale on which heads learn rewards: neither level nor unit of rewards changes a choice."""

from typing import NamedTuple, overload

from service.bandits.linalg import Array


class RewardScale(NamedTuple):
    """Rewards as heads learn them: (reward - origin) / span.

    origin   a reward of the declared range
    span     of the declared range
    """

    origin: float
    span: float

    @classmethod
    def to_shares(cls, limits: tuple[float, float]) -> "RewardScale":
        """Return the scale that maps a range to [0, 1]."""
        low, high = limits
        return cls(low, high - low)

    @classmethod
    def to_unit(cls, limits: tuple[float, float]) -> "RewardScale":
        """Return the scale that makes a range 1 wide and keeps the digits of rewards that are small
        in it: its origin is the reward nearest to 0."""
        low, high = limits
        return cls(min(max(low, 0.0), high), high - low)

    @overload
    def __call__(self, reward: float) -> float: ...
    @overload
    def __call__(self, reward: Array) -> Array: ...
    def __call__(self, reward: float | Array) -> float | Array:
        """Return rewards as a head learns them."""
        return (reward - self.origin) / self.span

    def restored(self, value: Array) -> Array:
        """Return the rewards that values of a head stand for."""
        return self.origin + self.span * value
