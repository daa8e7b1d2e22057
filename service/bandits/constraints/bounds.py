"""The bounds of the chances of the arms of a decision, or of a slot of a slate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from math import inf
from typing import NamedTuple

import numpy as np

from service.bandits.constraints.cap import capped
from service.bandits.constraints.floor import floored, lifted
from service.bandits.constraints.limits import HELD, ArmLimits, Explore, Group, Limit, Pin
from service.bandits.constraints.pin import pinned
from service.bandits.linalg import Array, Mask


@dataclass(frozen=True, eq=False)
class Bounds:
    """What rules leave of the chances of n arms.

    low, high     (n,) of each arm
    caps, floors  of arms together, in the order of their rules
    relaxed       numbers of the rules that yielded, in order
    pins          rules that pin an arm
    arm_caps, arm_floors   of arms on their own, by rule; exploration is a floor
    """

    low: Array
    high: Array
    caps: tuple[Group, ...] = ()
    floors: tuple[Group, ...] = ()
    relaxed: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    arm_caps: tuple[ArmLimits, ...] = ()
    arm_floors: tuple[ArmLimits, ...] = ()
    _explored: dict[float, "Bounds"] = field(default_factory=dict, init=False, repr=False)

    @property
    def free(self) -> bool:
        """Whether any chances are within the bounds."""
        return not (self.caps or self.floors or self.low.any() or (self.high < 1).any())

    def explored(self, epsilon: float) -> "Bounds":
        """Return these bounds with at least epsilon / n for each arm, as far as they allow it. The
        answer for the last epsilon is kept."""
        if epsilon == 0:
            return self
        found = self._explored.get(epsilon)
        if found is None:
            uniform = np.full(len(self.low), epsilon / len(self.low))
            low = lifted(self.low, uniform, self.high, self.caps, self.floors)
            found = replace(self, low=low)
            self._explored.clear()
            self._explored[epsilon] = found
        return found

    def binding(self, q: Array) -> tuple[int, ...]:  # (n,)
        """Return the numbers of the rules that hold q where it is, in order: all pins, caps that
        are reached, and floors at which an arm, or a group, lies."""
        table, rules = self._table, set(self.pins)
        rules.update(_where(table.arm_caps, np.logical_or.reduce(q >= table.most, axis=1)))
        rules.update(_where(table.arm_floors, np.logical_or.reduce(q <= table.least, axis=1)))
        rules.update(_where(table.groups, table.sums.dot(q) >= table.reached))
        return tuple(sorted(rules))

    def violated(self, q: Array) -> tuple[int, ...]:  # (n,)
        """Return the numbers of the rules of groups whose bounds q breaks, in order."""
        table = self._table
        broken = table.sums.dot(q) > table.broken
        return tuple(sorted({*_where(table.groups, broken)}))

    @cached_property
    def begin(self) -> "Begin":
        """Where filling begins."""
        caps_of: list[list[int]] = [[] for _ in self.low]
        for number, cap in enumerate(self.caps):
            for arm in cap.arms.tolist():
                caps_of[arm].append(number)
        return Begin(
            self.low.tolist(),
            self.high.tolist(),
            1 - float(self.low.sum()),
            [cap.share - float(cap.member.dot(self.low)) for cap in self.caps],
            caps_of,
            [(floor.share, frozenset(floor.arms.tolist())) for floor in self.floors],
        )

    @cached_property
    def _table(self) -> "_Table":
        n, groups = len(self.low), [*self.caps, *self.floors]
        signs = np.repeat([1.0, -1.0], [len(self.caps), len(self.floors)])
        shares = np.array([group.share for group in groups])
        vain = np.where(signs > 0, shares >= 1, shares <= 0)  # they hold nothing
        most = np.array([cap.shares for cap in self.arm_caps]).reshape(-1, n)
        least = np.array([floor.shares for floor in self.arm_floors]).reshape(-1, n)
        return _Table(
            [cap.rule for cap in self.arm_caps],
            np.where(most < 1, most - HELD, inf),
            [floor.rule for floor in self.arm_floors],
            np.where(least > 0, least + HELD, -inf),
            [group.rule for group in groups],
            np.array([group.member for group in groups]).reshape(-1, n) * signs[:, None],
            np.where(vain, inf, signs * shares - HELD),
            signs * shares + HELD,
        )


class Begin(NamedTuple):
    """Bounds as lists: loops over a few arms of these take less time than arrays.

    left      what is left of 1
    rooms     what each cap of a group leaves; caps_of: the caps of each arm
    floors    shares and arms of groups
    """

    low: list[float]
    high: list[float]
    left: float
    rooms: list[float]
    caps_of: list[list[int]]
    floors: list[tuple[float, frozenset[int]]]


class _Table(NamedTuple):
    """Bounds in rows, each with its rule; floors of groups with a minus, as caps.

    most, least   (r, n) at which an arm has reached a cap, or a floor
    sums          (G, n) of groups
    reached       (G,) at which a sum has reached its bound; broken: beyond which it breaks it
    """

    arm_caps: list[int]
    most: Array
    arm_floors: list[int]
    least: Array
    groups: list[int]
    sums: Array
    reached: Array
    broken: Array


def _where(rules: Sequence[int], held: Mask) -> Iterator[int]:
    return compress(rules, held.tolist())


def bounds_of(
    n: int,
    pins: Sequence[Pin],
    caps: Sequence[Limit],
    floors: Sequence[Limit],
    explores: Sequence[Explore] = (),
) -> Bounds:
    """Return the bounds of n arms. Pins come before caps, caps before floors, floors before
    exploration, and rules of one kind in their order: later rules yield to earlier ones, by as
    little as needed, and are `relaxed`."""
    fixed = pinned(n, pins)
    most = capped(fixed, caps)
    least = floored(fixed, most, floors, explores)
    return Bounds(
        least.low,
        most.high,
        tuple(most.groups),
        tuple(least.groups),
        tuple(sorted(fixed.relaxed | most.relaxed | least.relaxed)),
        tuple(pin.rule for pin in pins),
        tuple(most.arms),
        tuple(least.arms),
    )
