"""Caps leave pinned arms their shares, and leave arms enough to make 1 together."""

from collections.abc import Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from service.bandits.constraints.limits import ROUNDING, ArmLimits, Group, Limit, group_of
from service.bandits.constraints.pin import Pinned
from service.bandits.constraints.scale import raised
from service.bandits.linalg import Array

HALVINGS = 50
"""Steps of a search between 0 and 1, to the last bits."""


class Capped(NamedTuple):
    """The most that arms may get.

    high      (n,) of each arm: the share of a pinned one
    groups    caps of arms together
    arms      caps of arms on their own
    relaxed   rules that yielded
    """

    high: Array
    groups: list[Group]
    arms: list[ArmLimits]
    relaxed: set[int]


def capped(pins: Pinned, caps: Sequence[Limit]) -> Capped:
    """Cap arms that are not pinned. Where caps leave less than 1, the last one yields; if that is
    not enough, the one before it as well, and so on."""
    relaxed = set[int]()
    after_pins = [_after_pins(cap, pins, relaxed) for cap in caps]
    found = _all(pins, after_pins, relaxed)
    if _sum_at_least(found) < 1 - ROUNDING:
        return _yielding(pins, after_pins, relaxed)
    return found


def _sum_at_least(caps: Capped) -> float:
    """Return a sum that arms can reach: the largest, unless groups overlap."""
    beyond = (float(group.member.dot(caps.high)) - group.share for group in caps.groups)
    return float(caps.high.sum()) - sum(max(excess, 0.0) for excess in beyond)


def most(low: Array, high: Array, caps: Sequence[Group]) -> Array:  # (n,), (n,) -> (n,)
    """Return chances of the largest sum. They are: where groups overlap in more than pairs, the sum
    may fall short of the largest. Arms of fewer groups get theirs first."""
    if not caps:
        return high
    groups_of = np.sum([group.member for group in caps], axis=0)
    q = low
    for count in range(1, int(groups_of.max()) + 1):
        more = (high - q) * (groups_of <= count)
        for group in caps:
            room = max(group.share - float(group.member.dot(q)), 0.0)
            asked = float(group.member.dot(more))
            if asked > room:
                more *= 1 - group.member * (1 - room / asked)
        q = q + more
    return q


def _after_pins(cap: Limit, pins: Pinned, relaxed: set[int]) -> ArmLimits | Group:
    if not cap.each:
        group = group_of(cap, len(pins.shares))
        held = float(group.member.dot(pins.shares))
        if held > group.share + ROUNDING:
            relaxed.add(cap.rule)
        return group._replace(share=max(group.share, held))
    shares = np.full(len(pins.shares), inf)
    shares[cap.arms] = cap.share
    if pins.arms.any():
        if (pins.shares > shares + ROUNDING).any():
            relaxed.add(cap.rule)
        shares[pins.arms] = inf
    return ArmLimits(cap.rule, shares)


def _free(pins: Pinned) -> Array:  # (n,)
    """Return the most that arms may get without caps."""
    return np.where(pins.arms, pins.shares, 1.0)


def _all(pins: Pinned, caps: Sequence[ArmLimits | Group], relaxed: set[int]) -> Capped:
    high, groups, arms = _free(pins), list[Group](), list[ArmLimits]()
    for cap in caps:
        if isinstance(cap, Group):
            groups.append(cap)
        else:
            high = np.minimum(high, cap.shares)
            arms.append(cap)
    return Capped(high, groups, arms, relaxed)


def _yielding(pins: Pinned, caps: Sequence[ArmLimits | Group], relaxed: set[int]) -> Capped:
    """Add the caps of one rule after another, and raise them by as little as leaves 1 with those
    before them."""
    kept = list[ArmLimits | Group]()
    for rule, each in groupby(caps, attrgetter("rule")):
        own = [*each]
        if _missing(pins, [*kept, *own]) > ROUNDING:
            relaxed.add(rule)
            groups = [cap for cap in own if isinstance(cap, Group)]
            arms = [cap for cap in own if isinstance(cap, ArmLimits)]
            before = _all(pins, kept, relaxed)
            own = [*(_raised_alike(cap, pins, before) for cap in arms)]
            own += _opened(groups, pins, [*kept, *own])
        kept += own
    return _all(pins, kept, relaxed)


def _missing(pins: Pinned, caps: Sequence[ArmLimits | Group]) -> float:
    """Return what caps leave less than 1."""
    found = _all(pins, caps, set())
    return 1 - float(most(pins.shares, found.high, found.groups).sum())


def _opened(
    groups: Sequence[Group], pins: Pinned, kept: Sequence[ArmLimits | Group]
) -> list[Group]:
    """Raise the caps of the groups of a rule, each by the same part of what it lacks to 1, by as
    little as leaves 1 beside other caps."""

    def opened(part: float) -> list[Group]:
        return [cap._replace(share=cap.share + part * (1 - cap.share)) for cap in groups]

    least, part = 0.0, 1.0
    for _ in range(HALVINGS if groups else 0):
        middle = (least + part) / 2
        if _missing(pins, [*kept, *opened(middle)]) > 0:
            least = middle
        else:
            part = middle
    return opened(part)


def _raised_alike(cap: ArmLimits, pins: Pinned, before: Capped) -> ArmLimits:
    """Raise the caps of arms by the least common factor that leaves 1; those at 0, for which there
    is none, to one share where that of the others is not enough."""
    of_cap = cap.shares < inf
    weights = np.where(of_cap, cap.shares, 0.0)
    others = most(pins.shares, np.where(of_cap, 0.0, before.high), before.groups)
    q = raised(weights, others, np.where(of_cap, before.high, others), 1.0, before.groups)
    scalable, at_zero = weights > 0, of_cap & (weights == 0)
    factor = float((q[scalable] / weights[scalable]).max(initial=1.0))
    return ArmLimits(cap.rule, np.where(at_zero, q[at_zero].max(initial=0.0), cap.shares * factor))
