"""The weight of a settlement: how much it may move a head, by the size of its row beside the usual.

w = min(1, k1 / max_t r_t, k2 / r), where

    r_t   the square of a term t over the usual one; a term is a number, a list of numbers, or a
          product of them that a policy looks at
    r     the square of the length of the row over the usual one: all terms, and a 1 for each
          constant and each category

The usual square of a number is the mean over the settlements so far, each of them counted for at
most SURPRISE times what was usual before it, and at least 1. The service computes the weight when
it settles and logs it; the fold takes the logged one. docs/decisions/12 has reasons and figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import dist
from operator import truediv

import numpy as np

from service.bandits.posterior.base import Stored
from service.bandits.settled import Settled
from service.definition.experiment import CROSS, INTERCEPT, Definition, Numbers
from service.definition.features import Schema
from service.definition.view import LARGEST_PRODUCT

LARGEST_TERM, LARGEST_ROW = 9.0, 1.5
"""k1 and k2: how many times the usual square a term and a row may have and count whole."""

SURPRISE = 25.0
"""A row raises the usual square as if it were at most so many times as large: ten hostile ones by 8
percent after 3,000 rows, by a factor of 2 after 300. Larger values would let them do more, smaller
ones would keep numbers whose scale nobody has declared from being learned from for longer."""

PRIOR = 1.0
"""Rows that the usual square starts from, of square 1 a number. Numbers of 1,000 are learned from
as they are after eight rows, of 10,000 after twelve."""

OVERFLOW = LARGEST_PRODUCT**4
"""The square of what a view makes of the largest numbers."""


class Influence:
    """Of one experiment, under one schema of its features.

    squares   of each number or list of numbers: the sum of its squares, as they counted
    count     settlements
    """

    def __init__(self, schema: Schema, definition: Definition) -> None:
        self._parts = list(_parts(schema))
        self._zeros = [0.0] * max((size for _, _, size in self._parts), default=0)
        self.squares = [0.0] * len(self._parts)
        self.count = 0
        self.look(definition)

    def look(self, definition: Definition) -> None:
        """Take in what the policies of a definition look at."""
        place = {name: index for index, (name, _, _) in enumerate(self._parts)}
        self._products, self._constant = _terms(definition, place)

    def _squares(self, x: Sequence[float]) -> list[float]:
        """Of each number or list of numbers."""
        zeros = self._zeros
        return [
            x[start] ** 2
            if size == 1
            else dist(x[start : start + size], zeros if size == len(zeros) else zeros[:size]) ** 2
            for _, start, size in self._parts
        ]

    def _usual(self) -> list[float]:
        rows = PRIOR + self.count
        found = []
        for (_, _, size), total in zip(self._parts, self.squares, strict=True):
            mean = (PRIOR * size + total) / rows
            found.append(mean if mean > 1.0 else 1.0)
        return found

    def weight(self, x: Sequence[float]) -> float:  # (schema.width,)
        """Of a settlement with these base features, in (0, 1]."""
        if not self._parts:
            return 1.0
        squares, usual = self._squares(x), self._usual()
        row, usual_row = self._constant + sum(squares), self._constant + sum(usual)
        largest = max(map(truediv, squares, usual))
        for term in self._products:
            square = whole = 1.0
            for part in term:
                square = min(square * squares[part], OVERFLOW)
                whole = min(whole * usual[part], OVERFLOW)
            row += square
            usual_row += whole
            largest = max(largest, square / whole)
        excess = max(largest / LARGEST_TERM, row / usual_row / LARGEST_ROW)
        return 1.0 if excess <= 1.0 else 1.0 / excess

    def learn(self, settled: Settled) -> None:
        """Take in a settlement of which nothing was known before."""
        if not self._parts:
            return
        sums, usual = self.squares, self._usual()
        for part, square in enumerate(self._squares(settled.x)):
            most = SURPRISE * usual[part]
            sums[part] += square if square < most else most
        self.count += 1

    def arrays(self) -> dict[str, Stored]:
        return {"squares": np.array(self.squares), "count": np.array([self.count])}

    def restore(self, arrays: Mapping[str, Stored]) -> None:
        """Take in what `arrays` returned."""
        self.squares, [self.count] = arrays["squares"].tolist(), arrays["count"].tolist()


def _parts(schema: Schema) -> Iterator[tuple[str, int, int]]:
    """Name, first base column and length of each number or list of numbers."""
    for side, first in ((schema.context, 0), (schema.arm, schema.context.width)):
        for name, columns in side.columns.items():
            if isinstance(side.features[name], Numbers):
                yield name, first + columns.start, columns.stop - columns.start


def _terms(definition: Definition, place: Mapping[str, int]) -> tuple[list[tuple[int, ...]], float]:
    """The products of several numbers that the policies look at, and how many of their features are
    of no number (a constant, a category)."""
    seen = {INTERCEPT}
    for policy in definition.policies.values():
        seen.update(definition.features_of(policy))
    products: dict[tuple[int, ...], None] = {}
    others = 0
    for name in sorted(seen):
        numbers = tuple(sorted(place[part] for part in name.split(CROSS) if part in place))
        if len(numbers) > 1:
            products[numbers] = None
        others += not numbers
    return list(products), float(others)
