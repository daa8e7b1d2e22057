"""The arms of a request, and which of them a policy can tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from service.features import Array, View

Index = npt.NDArray[np.intp]
LARGE = 20_000
"""Arms of a catalogue that is not looked at as a whole for the sake of a few of them: which of a
million differ takes seconds to tell."""

Distinct = tuple[Index, Index]
"""Indexes of arms that differ (U,), and which of them each arm is like (K,)."""


@dataclass(frozen=True, slots=True)
class Design:
    """What a policy makes of the arms before it knows the context.

    first, of   as in `Distinct`
    part        (U, view.width) `View.arm_part` of the arms that differ
    arms        (U,) their ids
    counts      (U,) how many arms are like each
    alone       every arm is unlike the others
    """

    first: Index
    of: Index
    part: Array
    arms: Sequence[str]
    counts: Index
    alone: bool


SELECTIONS, SELECTED = 64, 1_024
"""So many selections are remembered, none of more arms."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The arms of one request: ids and encoded features, one row each.

    catalogue    where they are rows of it: what has been made of it serves for them too
    selections   of these, that were asked for lately: a page asks for the same ones again
    """

    ids: Sequence[str]
    x: Array  # (K, arm.width)
    catalogue: "tuple[Candidates, Index] | None" = None
    selections: "dict[Sequence[Any], Candidates]" = field(default_factory=dict, repr=False)
    _distinct: dict[View, Distinct] = field(default_factory=dict, repr=False)
    _designs: dict[tuple[View, bool], Design] = field(default_factory=dict, repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {arm: row for row, arm in enumerate(self.ids)}

    @cached_property
    def written_ids(self) -> msgspec.Raw:
        """The ids as JSON."""
        return msgspec.Raw(msgspec.json.encode(self.ids))

    def choose(self, ids: Sequence[str], rows: Sequence[int]) -> "Candidates":
        """Some of these, each once, in another order."""
        index = np.array(rows, np.intp)
        if len(self.ids) > LARGE and len(rows) < len(self.ids) // 10:
            return Candidates(ids, self.x[index])
        chosen = Candidates(ids, self.x[index], (self, index))
        if len(rows) <= SELECTED:
            if len(self.selections) >= SELECTIONS:
                self.selections.clear()
            self.selections[tuple(ids)] = chosen
        return chosen

    def distinct(self, view: View) -> Distinct:
        found = self._distinct.get(view)
        if found is None:
            found = self._distinct[view] = self._find_distinct(view)
        return found

    def _find_distinct(self, view: View) -> Distinct:
        if self.catalogue is not None:
            # Rows that differ are numbered in the order of their values, there as here.
            catalogue, index = self.catalogue
            differ, numbers = catalogue.distinct(view)
            own = numbers[index]
            if len(differ) == len(catalogue.ids):  # so do these: half the work
                first = own.argsort()
                of = np.empty_like(first)
                of[first] = np.arange(len(first))
                return first, of
            _, first, of = np.unique(own, return_index=True, return_inverse=True)
            return first, of
        columns = self.x[:, view.arm_columns]
        if not columns.shape[1]:
            return np.zeros(1, np.intp), np.zeros(len(self.ids), np.intp)
        _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        return first, of.reshape(-1)

    def design(self, view: View, per_arm: bool) -> Design:
        """per_arm: arms of equal features are told apart all the same."""
        found = self._designs.get((view, per_arm))
        if found is None:
            found = self._designs[view, per_arm] = self._make_design(view, per_arm)
        return found

    def _make_design(self, view: View, per_arm: bool) -> Design:
        if per_arm:
            first = of = np.arange(len(self.ids))
        else:
            first, of = self.distinct(view)
        ids = self.ids
        arms = list(ids) if per_arm else [ids[index] for index in first.tolist()]
        counts = np.bincount(of, minlength=len(first))
        return Design(
            first, of, self._part(view, per_arm, first), arms, counts, len(first) == len(ids)
        )

    def _part(self, view: View, per_arm: bool, first: Index) -> Array:
        if self.catalogue is None:
            return view.arm_part(self.x[first])
        catalogue, index = self.catalogue
        whole = catalogue.design(view, per_arm)
        return whole.part[whole.of[index[first]]]
