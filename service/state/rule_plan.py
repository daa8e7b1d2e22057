"""What rules make of a decision: its candidates, and the limits of their chances, which may depend
on what windows have counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from service.bandits.candidates import Candidates
from service.bandits.constraints.limits import Explore, Limit
from service.bandits.constraints.slots import Quota, Ruling, SlateLimits, SlotPin
from service.bandits.constraints.window import affordable, paced_cap, paced_floor
from service.bandits.linalg import Array, Index
from service.definition.rules import EACH_ARM, ShareRule
from service.errors import NoEligibleArm
from service.state.decisions import WindowCount

ArmCount = tuple[str, int]
"""A rule, and a number of arms."""


class Paced(NamedTuple):
    """A rule with a window, among the candidates.

    of       (n,) which arm, or group of arms, each candidate is of; -1: of none
    labels   of these, by which showings are counted
    """

    number: int
    name: str
    declared: ShareRule
    of: Index
    labels: Sequence[str]

    def counted(self, arms: Sequence[int]) -> list[str]:
        """Return the labels of what a slate showed. arms: places of those in its slots."""
        counted = arms if self.declared.count is not None else arms[:1]
        return [self.labels[group] for group in self.of[list(counted)].tolist() if group >= 0]

    def rulings(self, bounds: Array) -> Iterator[Ruling[Limit]]:
        """Yield the limits of bounds (G,), one of each group."""
        number = self.number
        if self.declared.of == EACH_ARM:
            yield Ruling(Limit(number, np.arange(len(self.of)), bounds, each=True), False)
            return
        for group, share in enumerate(bounds.tolist()):
            yield Ruling(Limit(number, np.flatnonzero(self.of == group), share, each=False), False)


class Plan(NamedTuple):
    """Limits of n candidates, before the counts of windows are known."""

    candidates: int
    pins: Sequence[SlotPin]
    quotas: Sequence[Quota]
    caps: Sequence[Ruling[Limit] | Paced]
    floors: Sequence[Ruling[Limit] | Paced]
    explores: Sequence[Ruling[Explore]]
    relaxed: tuple[int, ...]

    @property
    def paced(self) -> tuple[Paced, ...]:
        """The rules whose bounds depend on counts."""
        return tuple([each for each in (*self.caps, *self.floors) if isinstance(each, Paced)])

    def shown(self, arms: Sequence[int]) -> dict[str, list[str]]:
        """Return the labels of what a slate showed, by the rule that counts them."""
        return {each.name: each.counted(arms) for each in self.paced}

    def limits(self, counts: Sequence[WindowCount]) -> SlateLimits:
        """Return the limits under these counts. Raises NoEligibleArm where counts are used up, and
        KeyError where one is not there."""
        known = {each.rule: each for each in counts}
        quotas, caps = [*self.quotas], list[Ruling[Limit]]()
        there = np.ones(self.candidates, bool)
        for each in self.caps:
            if isinstance(each, Ruling):
                caps.append(each)
                continue
            shown = np.array(known[each.name].shown, np.intp)
            if each.declared.count is not None:
                left = each.declared.count - shown
                quotas.append(Quota(each.number, each.of, left, hard=True))
                before = int(np.count_nonzero(there))
                there &= ~np.append(left <= 0, False)[each.of]
                if not there.any():
                    raise NoEligibleArm(each.name, before)
            else:
                caps += each.rulings(_paced(paced_cap, each, known[each.name]))
        return SlateLimits(
            self.candidates,
            pins=self.pins,
            caps=caps,
            floors=self._floors(known),
            explores=self.explores,
            quotas=quotas,
            relaxed=self.relaxed,
        )

    def _floors(self, known: Mapping[str, WindowCount]) -> list[Ruling[Limit]]:
        """Return the floors. Those that are paced take no more in all than pins leave of 1."""
        paced = [each for each in self.floors if isinstance(each, Paced) and len(each.labels)]
        bounds = list[Array]()
        if paced:
            least = [_paced(paced_floor, each, known[each.name]) for each in paced]
            shares = [np.full(len(each.labels), each.declared.share or 0.0) for each in paced]
            room = 1 - sum(pin.share for pin in self.pins if pin.slot == 1)
            whole = affordable(np.concatenate(least), np.concatenate(shares), max(room, 0.0))
            bounds = np.split(whole, np.cumsum([len(each) for each in least])[:-1])
        floors = list[Ruling[Limit]]()
        for each in self.floors:
            if isinstance(each, Ruling):
                floors.append(each)
            elif len(each.labels):
                floors += each.rulings(bounds.pop(0))
        return floors


def _paced(
    pace: Callable[[float, Index, int, int | None], Array], each: Paced, counts: WindowCount
) -> Array:
    length = each.declared.window
    assert length is not None
    assert each.declared.share is not None
    shown = np.array(counts.shown, np.intp)
    return pace(each.declared.share, shown, counts.decisions, length.decisions)


class Ruled(NamedTuple):
    """What rules make of a decision.

    candidates   the eligible ones
    limits       None: nothing bounds their chances
    removed      rules by which arms were removed, and how many
    unknown      rules that could not tell of arms, for want of a value, and of how many
    if_empty     no arm was eligible: the candidate is the one that the rules name for that
    plan         from which `counted` makes the limits, where they depend on counts
    counts       from which it made them
    """

    candidates: Candidates
    limits: SlateLimits | None = None
    removed: tuple[ArmCount, ...] = ()
    unknown: tuple[ArmCount, ...] = ()
    if_empty: bool = False
    plan: Plan | None = None
    counts: tuple[WindowCount, ...] = ()

    def counted(self, counts: tuple[WindowCount, ...]) -> "Ruled":
        """Return the same with the limits under these counts. Raises NoEligibleArm, or KeyError
        where a count is not there."""
        if self.plan is None:
            return self
        return self._replace(limits=self.plan.limits(counts), counts=counts)

    def moved_by(self, names: Sequence[str], held: Sequence[int]) -> tuple[str, ...]:
        """Return the names of the rules that removed an arm or held a chance. names: of all rules;
        held: numbers of the latter."""
        if not held:
            return tuple([name for name, _ in self.removed])
        return tuple([name for name, _ in self.removed] + [names[number] for number in held])
