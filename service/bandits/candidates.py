"""The arms of a request, and which of them a policy can tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from service.bandits.linalg import Index
from service.features.schema import Array
from service.features.view import View

LARGE = 20_000
"""Arms from which on a catalogue is not compared as a whole for a few of them: a million take
seconds."""

Distinct = tuple[Index, Index]
"""Indexes of the distinct rows (U,), and which of them each row is (K,)."""


@dataclass(frozen=True, slots=True)
class DistinctArms:
    """The arms that a policy can tell apart, in any context.

    of         (K,) which of them each arm is
    part       (U, view.width) `View.arm_part` of these
    ids        (U,) of these, each of its first arm
    counts     (U,) how many arms are like each
    in_order   all arms are distinct, and in their order
    """

    of: Index
    part: Array
    ids: Sequence[str]
    counts: Index
    in_order: bool


SELECTIONS, SELECTED = 64, 1_024
"""Selections that are remembered, and the arms of one, at most."""


class Selections(dict[Sequence[object], "Candidates"]):
    """Recent selections by ids: a page asks for the same ones again."""

    def remember(self, ids: Sequence[object], found: "Candidates") -> None:
        """Remember a selection, unless it is long."""
        if len(ids) <= SELECTED:
            if len(self) >= SELECTIONS:
                self.clear()
            self[tuple(ids)] = found


@dataclass(frozen=True, eq=False)
class Candidates:
    """The arms of one request: ids and encoded features, one row each.

    catalogue    the arms that these were selected from, and their rows there
    kept         what others found out about these arms, each by itself: it goes with them, though
                 it may refer to them
    """

    ids: Sequence[str]
    x: Array  # (K, arm.width)
    catalogue: "tuple[Candidates, Index] | None" = None
    # Weak: a policy replaces its view whenever its scaling moves.
    _rows: WeakKeyDictionary[View, Distinct] = field(default_factory=WeakKeyDictionary, repr=False)
    _arms: WeakKeyDictionary[View, dict[bool, DistinctArms]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    kept: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {arm: row for row, arm in enumerate(self.ids)}

    def choose(self, ids: Sequence[str], rows: Sequence[int]) -> "Candidates":
        """Select some arms, each once, in another order."""
        index = np.array(rows, np.intp)
        if len(self.ids) > LARGE and len(rows) < len(self.ids) // 10:
            return Candidates(ids, self.x[index])
        return Candidates(ids, self.x[index], (self, index))

    def distinct(self, view: View) -> Distinct:
        """Return the distinct rows of a view, in the order of their values."""
        found = self._rows.get(view)
        if found is None:
            found = self._rows[view] = self._find_distinct(view)
        return found

    def _find_distinct(self, view: View) -> Distinct:
        if self.catalogue is None:
            rows = self.x[:, view.arm_columns]
            if not rows.shape[1]:
                return np.zeros(min(len(rows), 1), np.intp), np.zeros(len(rows), np.intp)
            _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
            return first, of.reshape(-1)
        catalogue, index = self.catalogue
        numbers = catalogue.distinct(view)[1][index]
        _, first, of = np.unique(numbers, return_index=True, return_inverse=True)
        return first, of

    def distinct_arms(self, view: View, per_arm: bool) -> DistinctArms:
        """Return the arms whose rows differ.

        per_arm: arms of equal features are told apart all the same.
        """
        known = self._arms.setdefault(view, {})
        found = known.get(per_arm)
        if found is None:
            found = known[per_arm] = self._find_distinct_arms(view, per_arm)
        return found

    def _find_distinct_arms(self, view: View, per_arm: bool) -> DistinctArms:
        if per_arm:
            first = of = np.arange(len(self.ids))
        else:
            first, of = self.distinct(view)
        ids = [self.ids[index] for index in first.tolist()]
        counts = np.bincount(of, minlength=len(first))
        return DistinctArms(of, view.arm_part(self.x[first]), ids, counts, per_arm)
