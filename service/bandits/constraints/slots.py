"""The limits of one decision: what rules allow in each slot of its slate."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from service.bandits.constraints.bounds import Bounds, bounds_of
from service.bandits.constraints.limits import Explore, Limit, Pin
from service.bandits.linalg import Array, Index
from service.bandits.rules import TRY_SHARE

TRIES_FLOOR = -1
"""Number of the floor for arms that a policy tries for their own sake, which is no rule."""


class SlotPin(NamedTuple):
    """A share of a slot, counted from 1, for an arm, which is not eligible in earlier slots."""

    rule: int
    arm: int
    share: float
    slot: int


class Quota(NamedTuple):
    """How many arms of each group a slate shows at most.

    of     (n,) group of each arm; -1: none
    most   (G,)
    hard   it never yields: a slate is shorter rather
    """

    rule: int
    of: Index
    most: Index
    hard: bool = False


BoundT = TypeVar("BoundT", Limit, Explore)


class Ruling(NamedTuple, Generic[BoundT]):
    """A bound on chances, and whether it holds in every slot or in the first alone."""

    bound: BoundT
    everywhere: bool


class SlotBounds(NamedTuple):
    """What rules allow in one slot.

    arms      places of those that are eligible, among the candidates, rising
    bounds    of their chances
    held      numbers of the rules that made arms ineligible here
    relaxed   numbers of the rules that yield here
    """

    arms: Index
    bounds: Bounds
    held: tuple[int, ...]
    relaxed: tuple[int, ...]

    def holding(self, bounds: Bounds, p: Array) -> set[int]:
        """Return the numbers of the rules that hold chances (n,) where they are. bounds: of the
        slot, with exploration."""
        return {*self.held, *bounds.binding(p)} - {TRIES_FLOOR}


class SlateLimits:
    """What rules say of the n candidates of a decision, all of them eligible.

    relaxed   rules that yield in any slot
    """

    def __init__(
        self,
        count: int,
        *,
        pins: Sequence[SlotPin] = (),
        caps: Sequence[Ruling[Limit]] = (),
        floors: Sequence[Ruling[Limit]] = (),
        explores: Sequence[Ruling[Explore]] = (),
        quotas: Sequence[Quota] = (),
        relaxed: tuple[int, ...] = (),
    ) -> None:
        self._count = count
        self._pins, self._quotas, self._relaxed = pins, quotas, relaxed
        self._caps, self._floors, self._explores = caps, floors, explores
        self._first: dict[tuple[int, tuple[int, ...]], SlotBounds | None] = {}

    def slot(
        self,
        number: int,
        slots: int,
        left: Index,
        shown: Sequence[int],
        untried: tuple[int, ...] = (),
    ) -> SlotBounds | None:
        """Return a slot of a slate, the first of which is 1; None where hard quotas leave no arm.

        left: (m,) places of the arms that are not shown yet, rising; shown: those in the slots
        before it; untried: arms to be tried for their own sake
        """
        if number > 1:
            return self._slot(number, slots, left, shown, untried)
        last = max((pin.slot for pin in self._pins if pin.slot <= slots), default=1)
        key = last, untried
        if key not in self._first:
            self._first[key] = self._slot(1, last, left, (), untried)
        return self._first[key]

    def _slot(
        self, number: int, slots: int, left: Index, shown: Sequence[int], untried: tuple[int, ...]
    ) -> SlotBounds | None:
        arms, held, relaxed = self._eligible(number, slots, left, shown)
        if not len(arms):
            return None
        among = _Among(self._count, arms)
        pins = list[Pin]()
        for pin in self._pins:
            if pin.slot == number and pin.arm not in shown:
                place = among.place(pin.arm)
                if place is None:
                    relaxed.append(pin.rule)
                else:
                    pins.append(Pin(pin.rule, place, pin.share))
        wanted = _in_slot(self._floors, number)
        floors = among.shares(wanted)
        if len(floors) < len(wanted):
            unshown = _Among(self._count, left)
            relaxed += [
                floor.rule for floor in wanted if among.lacks(floor) and not unshown.lacks(floor)
            ]
        if untried:
            floors += among.shares([Limit(TRIES_FLOOR, np.array(untried), TRY_SHARE, each=False)])
        bounds = bounds_of(
            len(arms),
            pins,
            among.shares(_in_slot(self._caps, number)),
            floors,
            _in_slot(self._explores, number),
        )
        found = {*self._relaxed, *relaxed, *bounds.relaxed} - {TRIES_FLOOR}
        return SlotBounds(arms, bounds, tuple(held), tuple(sorted(found)))

    def _eligible(
        self, number: int, slots: int, left: Index, shown: Sequence[int]
    ) -> tuple[Index, list[int], list[int]]:
        """Return the places of the arms that are eligible in a slot, the rules that made others
        ineligible, and those that yield so that there is one."""
        held, relaxed = list[int](), list[int]()
        for quota in self._quotas:
            groups = quota.of[list(shown)]
            counts = np.bincount(groups[groups >= 0], minlength=len(quota.most))
            full = np.append(counts >= quota.most, False)  # the last one is that of no group
            kept = left[~full[quota.of[left]]]
            if not len(kept) and not quota.hard:
                relaxed.append(quota.rule)
            elif len(kept) < len(left):
                held.append(quota.rule)
                left = kept
        for pin in self._pins:
            if number < pin.slot <= slots:
                kept = left[left != pin.arm]
                if len(kept):
                    left = kept
                else:
                    relaxed.append(pin.rule)
        return left, held, relaxed


def _in_slot(rulings: Sequence[Ruling[BoundT]], number: int) -> list[BoundT]:
    return [ruling.bound for ruling in rulings if ruling.everywhere or number == 1]


class _Among:
    """Places of candidates among some of them."""

    def __init__(self, count: int, arms: Index) -> None:
        self._all = len(arms) == count
        self._place = np.full(count, -1)
        self._place[arms] = np.arange(len(arms))

    def place(self, arm: int) -> int | None:
        found = int(self._place[arm])
        return None if found < 0 else found

    def lacks(self, share: Limit) -> bool:
        """Say whether none of its arms is there."""
        return bool((self._place[share.arms] < 0).all())

    def shares(self, shares: Sequence[Limit]) -> list[Limit]:
        """Return the shares of those of their arms that are there."""
        if self._all:
            return [*shares]
        found = list[Limit]()
        for each in shares:
            places = self._place[each.arms]
            there = places >= 0
            if there.any():
                share = each.share[there] if isinstance(each.share, np.ndarray) else each.share
                found.append(each._replace(arms=places[there], share=share))
        return found
