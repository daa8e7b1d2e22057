"""The arms of a request, and which of them a policy can tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from service.features import Array, View

Distinct = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
"""Indexes of arms that differ (U,), and which of them each arm is like (K,)."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The arms of one request: ids and encoded features, one row each."""

    ids: Sequence[str]
    x: Array  # (K, arm.width)
    _distinct: dict[View, Distinct] = field(default_factory=dict, repr=False)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {arm: row for row, arm in enumerate(self.ids)}

    def distinct(self, view: View) -> Distinct:
        found = self._distinct.get(view)
        if found is None:
            columns = self.x[:, view.arm_columns]
            if columns.shape[1]:
                _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
                found = first, of.reshape(-1)
            else:
                found = np.zeros(1, np.intp), np.zeros(len(self.ids), np.intp)
            self._distinct[view] = found
        return found
