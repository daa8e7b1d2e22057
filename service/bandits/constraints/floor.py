"""Floors and exploration take no more than pins, caps and earlier floors leave."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from service.bandits.constraints.cap import Capped
from service.bandits.constraints.limits import ROUNDING, ArmLimits, Explore, Group, Limit, group_of
from service.bandits.constraints.pin import Pinned
from service.bandits.linalg import Array


class Floored(NamedTuple):
    """The least that arms get.

    low       (n,) of each arm: the share of a pinned one
    groups    floors of arms together
    arms      floors of arms on their own, and exploration
    relaxed   rules that yielded
    """

    low: Array
    groups: list[Group]
    arms: list[ArmLimits]
    relaxed: set[int]


def floored(
    pins: Pinned, caps: Capped, floors: Sequence[Limit], explores: Sequence[Explore]
) -> Floored:
    """Add floors in their order, then exploration, each as far as it is possible."""
    n = len(pins.shares)
    found = Floored(pins.shares, [], [], set())
    for floor in floors:
        if floor.each:
            wanted = np.zeros(n)
            wanted[floor.arms] = floor.share
            found = _with_arms(found, ArmLimits(floor.rule, wanted), pins, caps)
        else:
            found = _with_group(found, group_of(floor, n), caps)
    for explore in explores:
        wanted = np.full(n, explore.share / n)
        found = _with_arms(found, ArmLimits(explore.rule, wanted), pins, caps)
    return found


def lifted(
    low: Array, wanted: Array, high: Array, caps: Sequence[Group], floors: Sequence[Group]
) -> Array:  # (n,), (n,), (n,) -> (n,)
    """Return low, raised to `wanted` as far as the other bounds allow; all arms yield alike."""
    more = np.maximum(np.minimum(wanted, high) - low, 0.0)
    for cap in (*caps, _whole(len(low))):
        more = _affordable(more, cap, low, high, floors)
    return low + more


@lru_cache
def _whole(n: int) -> Group:
    """Return all arms as a group, whose cap is 1. No rule has its number."""
    return Group(-1, np.arange(n), 1.0, np.ones(n))


def _affordable(
    more: Array, cap: Group, low: Array, high: Array, floors: Sequence[Group]
) -> Array:  # (n,), (n,), (n,) -> (n,)
    """Return what a cap of arms together leaves of what is added to low. What earlier floors will
    take of the cap in any case is reserved: it pays for what is added to their arms."""
    room = max(cap.share - float(cap.member.dot(low)), 0.0)
    cost = more * cap.member
    if cost.sum() + sum(floor.share for floor in floors) <= room:
        return more
    for floor in floors:
        both = floor.member * cap.member
        elsewhere = float((floor.member - both).dot(high - low))
        reserve = min(floor.share - float(floor.member.dot(low)) - elsewhere, room)
        if reserve > 0:
            room -= reserve
            asked = float(both.dot(cost))
            if asked > 0:
                cost = cost * (1 - both * min(1.0, reserve / asked))
    total = float(cost.sum())
    return more if total <= room else more - cost * (1 - room / total)


def _with_arms(before: Floored, floor: ArmLimits, pins: Pinned, caps: Capped) -> Floored:
    low = lifted(before.low, floor.shares, caps.high, caps.groups, before.groups)
    relaxed = before.relaxed
    if (floor.shares > low + ROUNDING).any():
        relaxed = relaxed | {floor.rule}
    reached = np.where(pins.arms, 0.0, np.minimum(floor.shares, low))
    return Floored(low, before.groups, [*before.arms, floor._replace(shares=reached)], relaxed)


def _with_group(before: Floored, floor: Group, caps: Capped) -> Floored:
    within = caps.high * floor.member
    highest = lifted(before.low, within, caps.high, caps.groups, before.groups)
    share = min(floor.share, float(floor.member.dot(highest)))
    relaxed = before.relaxed
    if floor.share > share + ROUNDING:
        relaxed = relaxed | {floor.rule}
    return before._replace(groups=[*before.groups, floor._replace(share=share)], relaxed=relaxed)
