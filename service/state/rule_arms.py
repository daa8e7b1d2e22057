"""Rules with their conditions parsed, and arms as conditions see them: columns of values."""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from service.bandits.linalg import Index, Mask
from service.definition.rules import NEW, ArmGroup, DeclaredRule, ValueTypes, seconds_of
from service.features.expression import Column, Values, column_of, parse
from service.state.newness import Newness
from service.state.rule_plan import Ruled

NO_GROUP = -2
"""Number of the group of a value that no arm has."""

ArmValues = Callable[[str], Mapping[str, object]]
"""Features and attributes of an arm, by name."""


class Told(NamedTuple):
    """Which arms a condition keeps, and of which it cannot tell for want of a value."""

    kept: Mask
    unknown: Mask


class ArmColumns:
    """Values of some candidates, in columns that are made once.

    rows    of the arms; ids: their ids in this order
    found   what rules made of them, by all that it depends on
    same    candidates and limits, by the eligible arms, the rules that hold and the new arms: what
            has other findings in common is made once, and decided together
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        values: ArmValues,
        types: ValueTypes,
        defaults: Mapping[str, object],
        newness: Newness,
        outside: Collection[str],
    ) -> None:
        self.rows = rows
        self.ids = ids = [*rows]
        self._values, self._types, self._defaults = values, types, defaults
        self._came = np.array([newness.came.get(arm, -inf) for arm in ids])
        self._inside = np.array([arm not in outside for arm in ids])
        self._settled: tuple[int, Index] | None = None
        self._columns: dict[str, Column] = {}
        self._groups: dict[str, tuple[Index, dict[object, int]]] = {}
        self.found: dict[object, Ruled] = {}
        self.same: dict[object, Ruled] = {}

    def note_change(self, arm: str) -> None:
        """Read the values of an arm again, where it is one of these."""
        row = self.rows.get(arm)
        if row is None:
            return
        for name, column in self._columns.items():
            own = self._column([arm], name)
            column.values[row], column.known[row] = own.values[0], own.known[0]
        self._groups.clear()
        self.found.clear()
        self.same.clear()

    def column(self, name: str) -> Column:
        known = self._columns.get(name)
        if known is None:
            known = self._columns[name] = self._column(self.ids, name)
        return known

    def _column(self, ids: Sequence[str], name: str) -> Column:
        default = self._defaults.get(name)
        values = [self._values(arm).get(name, default) for arm in ids]
        return column_of(values, self._types.arm[name])

    def groups(self, name: str) -> tuple[Index, Mapping[object, int]]:
        """Return the group of each arm by a value, -1 where it has none, and the groups' values."""
        known = self._groups.get(name)
        if known is None:
            values, known_values = self.column(name), dict[object, int]()
            of = [
                known_values.setdefault(value, len(known_values)) if there else -1
                for value, there in zip(values.values.tolist(), values.known.tolist(), strict=True)
            ]
            known = self._groups[name] = np.array(of, np.intp), known_values
        return known

    def among(self, ids: Collection[str]) -> Mask:
        wanted = frozenset(ids)
        return np.array([arm in wanted for arm in self.ids])

    def meant(self, group: ArmGroup | None) -> Mask:
        """Return which arms an eligibility is about."""
        if group is None:
            return np.ones(len(self.ids), bool)
        if group.arm is not None:
            return self.among([group.arm])
        assert group.of is not None
        of, values = self.groups(group.of)
        if group.value is None:
            return np.asarray(of >= 0)
        return np.asarray(of == values.get(group.value, NO_GROUP))

    def new(self, group: ArmGroup | None, newness: Newness, at: float) -> Mask:
        """Return which arms of the catalogue are new, as a group says what that is."""
        assert group is not None
        found = np.zeros(len(self.ids), bool)
        if group.younger_than is not None:
            found |= at - self._came < seconds_of(group.younger_than)
        if group.fewer_than is not None:
            if self._settled is None or self._settled[0] != newness.moved:
                counts = np.array([newness.settled.get(arm, 0) for arm in self.ids])
                self._settled = newness.moved, counts
            found |= self._settled[1] < group.fewer_than
        found &= self._inside
        return found


class ParsedRule:
    """A rule with its conditions parsed.

    segment    when it holds; None: always
    eligible   of arms that may be shown; None: those it is about, within its times
    """

    def __init__(self, number: int, name: str, declared: DeclaredRule, types: ValueTypes) -> None:
        self.number, self.name, self.declared = number, name, declared
        segment, eligible = declared.condition, declared.eligible_if
        self.segment = None if segment is None else parse(segment, types.context)
        self.eligible = None if eligible is None else parse(eligible, types.all)
        self.timed = declared.timed
        group = declared.named
        self.newness = group if group is not None and group.of == NEW else None

    def tell(self, arms: ArmColumns, scalars: Mapping[str, Values]) -> Told | None:
        """Return which arms its condition keeps eligible; None: it has none. scalars: the values of
        the context that conditions read."""
        if self.eligible is None:
            return None
        meant = arms.meant(self.declared.named)
        columns = {name: arms.column(name) for name in self.eligible.names - scalars.keys()}
        truth = self.eligible.evaluate({**scalars, **columns})
        return Told(~meant | truth.true, meant & ~np.asarray(truth.known))

    @property
    def read(self) -> frozenset[str]:
        """The names that its conditions read."""
        return frozenset().union(*(each.names for each in (self.segment, self.eligible) if each))
