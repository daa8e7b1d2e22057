"""The rules of an experiment at work: which arms of a decision are eligible, and its limits.

A rulebook is made once of a definition. What it finds depends on the candidates, the values of the
context that its conditions read, the time and the newness of arms: it remembers it for as long as
these are the same.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from service.bandits.candidates import Candidates
from service.bandits.linalg import Mask
from service.definition.experiment import Definition
from service.definition.rules import EXCLUDE, ONLY, ValueTypes
from service.errors import NoEligibleArm
from service.features.declaration import Features
from service.features.expression import Values
from service.state.newness import Newness
from service.state.plan_writer import PlanWriter
from service.state.rule_arms import ArmColumns, ArmValues, ParsedRule, Told
from service.state.rule_plan import ArmCount, Ruled

FINDINGS = 256
"""Findings that are remembered for the same candidates."""


class Situation(NamedTuple):
    """What rules look at in a decision, beside its candidates.

    context   values as sent        at     unix seconds of the decision
    exclude   arms that the request does not want
    only      arms among which it wants the choice; None: all
    off       rules that are left off, to measure what they cost
    """

    context: Mapping[str, Any]
    at: float
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    off: tuple[str, ...] = ()


class RuleBook:
    """The rules of a definition, parsed.

    names      of the rules, by their numbers
    verbs      of the rules, by their names: what each does
    arms       those that a rule gives a share of their own
    if_empty   the arm that is shown where none is eligible
    measured   names of the rules that are off for a share `measure` of the units
    """

    def __init__(self, definition: Definition) -> None:
        types = ValueTypes(definition.features, definition.attributes)
        self.measured = definition.rules.measured
        self.measure = definition.rules.measure or 0.0
        self._types, self.if_empty = types, definition.rules.if_empty
        self._defaults = _defaults(definition.features)
        self._attributes = definition.attributes.keys()
        self._rules = [
            ParsedRule(number, name, rule, types)
            for number, (name, rule) in enumerate(definition.rules.named.items())
        ]
        self.names = [rule.name for rule in self._rules]
        self.verbs = {rule.name: rule.declared.verb for rule in self._rules}
        self.arms = frozenset(
            found.arm
            for rule in self._rules
            if (found := rule.declared.pin or rule.declared.floor) is not None and found.arm
        )
        read = frozenset[str]().union(*(rule.read for rule in self._rules))
        self._read = sorted(read & types.context.keys())
        self._timed = [rule.declared for rule in self._rules if rule.timed]
        self._new = [rule for rule in self._rules if rule.newness is not None]
        self.counts_settled = any(
            rule.newness is not None and rule.newness.fewer_than is not None for rule in self._rules
        )
        self._known = WeakSet[ArmColumns]()

    def faults(self, arms: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[str, str]]:
        """Yield rules that can never hold over a catalogue, and why: whatever the context, while
        all arms are eligible and none is new. arms: values by id. Whether an arm is eligible may
        change with its attributes, and never with its features alone."""
        if not self.names or not arms:
            return
        rows = {arm: row for row, arm in enumerate(arms)}
        values = self._values_of(rows, arms)
        features = self._values_of(
            rows,
            {
                arm: {name: own for name, own in each.items() if name not in self._attributes}
                for arm, each in arms.items()
            },
        )
        for rule in self._rules:
            if (pin := rule.declared.pin) is not None:
                for other in self._rules:
                    may = other.tell(features, dict.fromkeys(self._read))
                    if may is not None and not (may.kept | may.unknown)[rows[pin.arm]]:
                        yield rule.name, f"pins an arm that is never eligible by {other.name}"
        always = [rule for rule in self._rules if rule.segment is None and not rule.timed]
        nobody = {rule.number: np.zeros(len(arms), bool) for rule in self._new}
        writer = PlanWriter(values, np.arange(len(arms)), nobody)
        static = [
            rule
            for rule in always
            if rule.declared.verb != "eligible" and rule.declared.window is None
        ]
        limits = writer.plan(static).limits(())
        last = max((rule.declared.pin.slot for rule in always if rule.declared.pin), default=1)
        for number in range(1, min(last, len(arms)) + 1):
            slot = limits.slot(number, last, np.arange(len(arms)), ())
            for broken in () if slot is None else slot.relaxed:
                alone = writer.plan([self._rules[broken]]).limits(())
                own = alone.slot(number, last, np.arange(len(arms)), ())
                if own is not None and broken in own.relaxed:
                    yield self.names[broken], f"cannot hold over {_counted(arms)} in slot {number}"
                else:
                    yield self.names[broken], f"cannot hold beside the other rules in slot {number}"

    def _values_of(
        self, rows: Mapping[str, int], arms: Mapping[str, Mapping[str, object]]
    ) -> ArmColumns:
        return ArmColumns(rows, arms.__getitem__, self._types, self._defaults, Newness(), ())

    def note_change(self, arm: str) -> None:
        """Note that attributes of an arm have changed."""
        for arms in self._known:
            arms.note_change(arm)

    def rule(
        self,
        candidates: Candidates,
        values: ArmValues,
        newness: Newness,
        situation: Situation,
        outside: Collection[str] = (),
    ) -> Ruled:
        """Return what the rules make of a decision. values: of the candidates; outside: those that
        are not of the catalogue. Raises NoEligibleArm."""
        arms: ArmColumns | None = candidates.kept.get(self)
        if arms is None:
            rows = candidates.row_of
            arms = ArmColumns(rows, values, self._types, self._defaults, newness, outside)
            if not outside:  # they come once
                candidates.kept[self] = arms
                self._known.add(arms)
        context, at = situation.context, situation.at
        new = {rule.number: arms.new(rule.newness, newness, at) for rule in self._new}
        key = (
            tuple([context.get(name) for name in self._read]),
            tuple([rule.holds_at(at) for rule in self._timed]),
            tuple([mask.tobytes() for mask in new.values()]),
            situation.exclude,
            situation.only,
            situation.off,
        )
        found = arms.found.get(key)
        if found is None:
            if len(arms.found) >= FINDINGS:
                arms.found.clear()
            found = arms.found[key] = self._find(candidates, arms, situation, new)
        return found

    def _find(
        self,
        candidates: Candidates,
        arms: ArmColumns,
        situation: Situation,
        new: Mapping[int, Mask],
    ) -> Ruled:
        scalars: dict[str, Values] = {
            name: situation.context.get(name, self._defaults.get(name)) for name in self._read
        }
        kept, removed, unknown = self._eligible(arms, situation, scalars)
        holding = [
            rule
            for rule in self._rules
            if rule.declared.verb != "eligible"
            and rule.name not in situation.off
            and rule.declared.holds_at(situation.at)
            and (rule.segment is None or rule.segment.evaluate(scalars).true)
        ]
        masks = [kept, *new.values()]
        key = tuple([rule.number for rule in holding]), tuple([mask.tobytes() for mask in masks])
        same = arms.same.get(key)
        if same is None:
            places, chosen = np.flatnonzero(kept), candidates
            if len(places) < len(kept):
                rows: list[int] = places.tolist()
                chosen = candidates.choose([candidates.ids[row] for row in rows], rows)
            same = Ruled(chosen)
            if holding:
                plan = PlanWriter(arms, places, new).plan(holding)
                same = Ruled(chosen, plan=plan) if plan.paced else Ruled(chosen, plan.limits(()))
            if len(arms.same) >= FINDINGS:
                arms.same.clear()
            arms.same[key] = same
        return same._replace(removed=removed, unknown=unknown)

    def _eligible(
        self, arms: ArmColumns, situation: Situation, scalars: Mapping[str, Values]
    ) -> tuple[Mask, tuple[ArmCount, ...], tuple[ArmCount, ...]]:
        """Return which arms are eligible, by which rules others were removed, and which rules could
        not tell. Raises NoEligibleArm."""
        kept = np.ones(len(arms.ids), bool)
        removed, unknown = list[ArmCount](), list[ArmCount]()
        for name, told in self._filters(arms, situation, scalars):
            if count := int(np.count_nonzero(told.unknown & kept)):
                unknown.append((name, count))
            if gone := int(np.count_nonzero(kept & ~told.kept)):
                removed.append((name, gone))
            kept &= told.kept
            if not kept.any():
                raise NoEligibleArm(name, gone)
        return kept, tuple(removed), tuple(unknown)

    def _filters(
        self, arms: ArmColumns, situation: Situation, scalars: Mapping[str, Values]
    ) -> Iterator[tuple[str, Told]]:
        """Yield what keeps arms from being shown, by its name."""
        nothing = np.zeros(len(arms.ids), bool)
        if situation.exclude:
            yield EXCLUDE, Told(~arms.among(situation.exclude), nothing)
        if situation.only is not None:
            yield ONLY, Told(arms.among(situation.only), nothing)
        for rule in self._rules:
            if rule.declared.verb == "eligible" and not rule.declared.holds_at(situation.at):
                yield rule.name, Told(~arms.meant(rule.declared.named), nothing)
            elif (told := rule.tell(arms, scalars)) is not None:
                yield rule.name, told


def _counted(arms: Collection[str]) -> str:
    return "the only arm" if len(arms) == 1 else f"the {len(arms):,} arms that there are"


def _defaults(features: Features) -> dict[str, Any]:
    """Return the values that features take where they are left out."""
    declared = {**features.context, **features.arm}
    return {name: getattr(feature, "default", None) for name, feature in declared.items()}
