"""The arms of a request, and which of them a policy can tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from service.bandits.posterior.rows import Index, Single
from service.definition.features import Array
from service.definition.view import View

LARGE = 20_000
"""Arms from which on a catalogue is not compared as a whole for a few of them: a million take
seconds."""

MOST_KEYS = 2**40
"""Keys of rows are renumbered beyond this, so that no product of them overflows."""

Distinct = tuple[Index, Index]
"""Indexes of arms that differ (U,), and which of them each arm is like (K,)."""


def in_order(rows: Array) -> Distinct:  # (K, columns)
    """Distinct rows in the order of their values: `numpy.unique` of rows, by column. 20,000 arms: 4
    ms in place of 38 with an embedding, 3 in place of 112 with a category."""
    if len(rows) and rows.shape[1]:
        order = rows[:, 0].argsort()
        first = rows[order, 0]
        if (first[1:] > first[:-1]).all():  # the first column tells all apart, as of a vector
            of = np.empty_like(order)
            of[order] = np.arange(len(order))
            return order, of
    of, count = np.zeros(len(rows), np.intp), 1
    for column in rows.T if len(rows) else ():
        least, most = column.min(), column.max()
        above = column > least
        if (column[above] == most).all():  # two values, as of a category's column
            of, count = 2 * of + above, 2 * count
            if count < MOST_KEYS:
                continue
        else:
            values, place = np.unique(column, return_inverse=True)
            of = _numbered(of) * len(values) + place
        of = _numbered(of)
        count = int(of.max()) + 1
        if count == len(rows):
            break
    _, first, of = np.unique(of, return_index=True, return_inverse=True)
    return first, of


def _numbered(keys: Index) -> Index:
    """From 0 on, in their order."""
    return np.unique(keys, return_inverse=True)[1]


@dataclass(frozen=True)
class Design:
    """The arms as a policy sees them before it knows the context.

    first, of     as in `Distinct`
    part          (U, view.width) `View.arm_part` of the distinct arms
    arms          (U,) their ids
    counts        (U,) how many arms are like each
    in_order      all arms are distinct, and in their order
    sides         `View.sides`
    whole         of a catalogue, not of one of its many selections
    first_layer   of the latest encoder, over the arms' own columns, and that encoder
    """

    first: Index
    of: Index
    part: Array
    arms: Sequence[str]
    counts: Index
    in_order: bool
    sides: tuple[Index, Index, Index]
    whole: bool
    first_layer: list[tuple[object, Array]] = field(default_factory=list)

    @cached_property
    def single(self) -> Single:
        """`part` in single precision; infinite where that does not hold it."""
        with np.errstate(over="ignore"):
            return self.part.astype(np.float32)

    @cached_property
    def length(self) -> float:
        """Of the longest row of `part`."""
        return float(np.sqrt(np.vecdot(self.part, self.part).max()))


SELECTIONS, SELECTED = 64, 1_024
"""So many selections are remembered, none of more arms."""


class Selections(dict[Sequence[object], "Candidates"]):
    """Recent selections by ids: a page asks for the same ones again."""

    def remember(self, ids: Sequence[object], found: "Candidates") -> None:
        """But for long ones."""
        if len(ids) <= SELECTED:
            if len(self) >= SELECTIONS:
                self.clear()
            self[tuple(ids)] = found


@dataclass(frozen=True, eq=False)
class Candidates:
    """The arms of one request: ids and encoded features, one row each.

    catalogue    the arms that these were selected from, and their rows there
    selections   of these
    """

    ids: Sequence[str]
    x: Array  # (K, arm.width)
    catalogue: "tuple[Candidates, Index] | None" = None
    selections: Selections = field(default_factory=Selections, repr=False)
    # Weak: a policy replaces its view whenever its scaling moves.
    _distinct: WeakKeyDictionary[View, Distinct] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    _designs: WeakKeyDictionary[View, dict[bool, Design]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

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
        self.selections.remember(ids, chosen)
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
        return in_order(self.x[:, view.arm_columns])

    def design(self, view: View, per_arm: bool) -> Design:
        """per_arm: arms of equal features are told apart all the same."""
        designs = self._designs.setdefault(view, {})
        found = designs.get(per_arm)
        if found is None:
            found = designs[per_arm] = self._make_design(view, per_arm)
        return found

    def _make_design(self, view: View, per_arm: bool) -> Design:
        if per_arm:
            first = of = np.arange(len(self.ids))
        else:
            first, of = self.distinct(view)
        ids = self.ids
        arms = list(ids) if per_arm else [ids[index] for index in first.tolist()]
        counts = np.bincount(of, minlength=len(first))
        part = self._part(view, per_arm, first)
        whole = self.catalogue is None
        return Design(first, of, part, arms, counts, per_arm, view.sides, whole)

    def _part(self, view: View, per_arm: bool, first: Index) -> Array:
        if self.catalogue is None:
            return view.arm_part(self.x[first])
        catalogue, index = self.catalogue
        whole = catalogue.design(view, per_arm)
        return whole.part[whole.of[index[first]]]
