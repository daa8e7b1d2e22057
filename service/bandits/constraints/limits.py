"""What rules ask of the chances of arms. A rule has a number; arms are places among the n arms of a
decision, or of a slot."""

from typing import NamedTuple

import numpy as np

from service.bandits.linalg import Array, Index

ROUNDING = 1e-12
"""Difference of two sums of chances that is due to rounding alone."""

HELD = 1e-9
"""Distance of a chance from a bound up to which the bound holds it."""


class Pin(NamedTuple):
    """An arm that gets exactly this share."""

    rule: int
    arm: int
    share: float


class Limit(NamedTuple):
    """A cap or a floor of arms.

    arms    (m,) distinct
    share   in [0, 1]; (m,) where arms have shares of their own
    each    the share is of each arm, else of all of them together
    """

    rule: int
    arms: Index
    share: float | Array
    each: bool


class Explore(NamedTuple):
    """The least share of uniform choice."""

    rule: int
    share: float


class Group(NamedTuple):
    """A cap or a floor of the sum of the chances of arms.

    arms     (m,)
    share    after it yielded
    member   (n,) 1 of its arms, else 0
    """

    rule: int
    arms: Index
    share: float
    member: Array


class ArmLimits(NamedTuple):
    """A cap or a floor of arms on their own: (n,) the share of each after it yielded; infinite
    where there is no cap, 0 where there is no floor."""

    rule: int
    shares: Array


class Constrained(NamedTuple):
    """Chances within bounds.

    p         (n,) with sum 1
    relaxed   rules that overlapping groups made yield, beyond those that are relaxed in the bounds
    """

    p: Array
    relaxed: tuple[int, ...]


def group_of(limit: Limit, n: int) -> Group:
    """Return a limit of arms together, among n arms."""
    member = np.zeros(n)
    member[limit.arms] = 1.0
    return Group(limit.rule, limit.arms, float(limit.share), member)
