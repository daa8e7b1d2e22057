"""Writes the plan of a decision: what the rules that hold mean for its candidates."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from service.bandits.constraints.limits import Explore, Limit
from service.bandits.constraints.slots import Quota, Ruling, SlotPin
from service.bandits.linalg import Index, Mask
from service.definition.rules import EACH_ARM, NEW, ShareRule
from service.state.rule_arms import ArmColumns, ParsedRule
from service.state.rule_plan import Paced, Plan


class PlanWriter:
    """Writes the plan of the eligible ones among some arms.

    places   (n,) of these among all
    new      of rules about new arms, which arms are new
    """

    def __init__(self, arms: ArmColumns, places: Index, new: Mapping[int, Mask]) -> None:
        self._arms, self._places, self._new = arms, places, new
        self._of = {arms.ids[place]: index for index, place in enumerate(places.tolist())}
        self._relaxed = list[int]()

    def plan(self, rules: Sequence[ParsedRule]) -> Plan:
        pins, quotas, explores = list[SlotPin](), list[Quota](), list[Ruling[Explore]]()
        caps, floors = list[Ruling[Limit] | Paced](), list[Ruling[Limit] | Paced]()
        for rule in rules:
            declared, number = rule.declared, rule.number
            if (pin := declared.pin) is not None and self._has(rule, pin.arm):
                pins.append(SlotPin(number, self._of[pin.arm], pin.share, pin.slot))
            if declared.cap is not None:
                caps += self._shares(rule, declared.cap)
            if declared.floor is not None:
                floors += self._shares(rule, declared.floor)
            if (explore := declared.explore) is not None:
                explores.append(Ruling(Explore(number, explore.share), explore.slots == "all"))
            if (quota := declared.at_most) is not None:
                of, values = self._arms.groups(quota.of)
                most = np.full(len(values), quota.per_slate)
                quotas.append(Quota(number, of[self._places], most))
        relaxed = tuple(self._relaxed)
        return Plan(len(self._places), pins, quotas, caps, floors, explores, relaxed)

    def _has(self, rule: ParsedRule, arm: str) -> bool:
        """Say whether an arm is eligible. A rule about a candidate that is not yields."""
        if arm in self._of:
            return True
        if arm in self._arms.rows:
            self._relax(rule)
        return False

    def _relax(self, rule: ParsedRule) -> None:
        """Note that a rule yields since its arms are not eligible. A cap holds even so."""
        if rule.declared.cap is None:
            self._relaxed.append(rule.number)

    def _shares(self, rule: ParsedRule, declared: ShareRule) -> Iterator[Ruling[Limit] | Paced]:
        groups = dict(self._groups(rule, declared))
        each = declared.of == EACH_ARM
        if declared.share is not None and declared.every is None:
            for arms in groups.values():
                limit = Limit(rule.number, arms, declared.share, each)
                yield Ruling(limit, declared.slots == "all")
        elif each:
            ids = [self._arms.ids[place] for place in self._places]
            yield Paced(rule.number, rule.name, declared, np.arange(len(ids)), ids)
        else:
            of = np.full(len(self._places), -1)
            for group, arms in enumerate(groups.values()):
                of[arms] = group
            yield Paced(rule.number, rule.name, declared, of, [*groups])

    def _groups(self, rule: ParsedRule, declared: ShareRule) -> Iterator[tuple[str, Index]]:
        """Yield the arms that share a bound, with a label; or all arms, of which each has it."""
        if declared.arm is not None:
            if self._has(rule, declared.arm):
                yield declared.arm, np.array([self._of[declared.arm]])
        elif declared.of == EACH_ARM:
            yield EACH_ARM, np.arange(len(self._places))
        elif declared.of == NEW:
            new = np.flatnonzero(self._new[rule.number][self._places])
            if len(new):
                yield NEW, new
        else:
            assert declared.of is not None
            of, values = self._arms.groups(declared.of)
            among = of[self._places]
            for value, group in values.items():
                if declared.value in (None, value):
                    arms = np.flatnonzero(among == group)
                    if len(arms):
                        yield str(value), arms
                    elif declared.value is not None:
                        self._relax(rule)
