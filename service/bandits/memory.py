"""Remembered settlements: heads are rebuilt from them under windows and after changes."""

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from service.bandits.heads.base import Stored, pack_names, unpack_names
from service.bandits.outcome import Outcome
from service.features.row import PackedRows, RowLayout


class Memory:
    """Settlements in log order, the latest `limit` of them; None: all.

    The settlements of one event stay or go together. Rows go once the limit is exceeded by an
    eighth, so that heads are rebuilt every `limit / 8` settlements.

    rows   their base vectors
    read   how many of them, from the first, late members of a head have learned
    """

    def __init__(self, layout: RowLayout, limit: int | None = None) -> None:
        self.limit, self.read = limit, 0
        self.positions: list[int] = []
        self.keys: list[str] = []
        self.arms: list[str] = []
        self.rewards: list[float] = []
        self.weights: list[float] = []
        self.imported: list[bool] = []
        self.rows = PackedRows(layout)
        self._row_of: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return self.positions, self.keys, self.arms, self.rewards, self.weights, self.imported

    def add(self, position: int, key: str, outcome: Outcome) -> None:
        self._row_of[key, outcome.arm] = len(self)
        self.rows.append(outcome.row)
        self.positions.append(position)
        self.keys.append(key)
        self.arms.append(outcome.arm)
        self.rewards.append(outcome.reward)
        self.weights.append(outcome.weight)
        self.imported.append(outcome.imported)

    def copy(self) -> "Memory":
        twin = Memory(self.rows.layout, self.limit)
        twin.restore(self.arrays())
        return twin

    def holds(self, key: str, arm: str) -> bool:
        return (key, arm) in self._row_of

    def was_read(self, key: str, arm: str) -> bool:
        """Whether a settlement is held that late members have learned."""
        return self._row_of.get((key, arm), self.read) < self.read

    def position_of(self, key: str, arm: str) -> int:
        """Return the log position of a settlement that is held."""
        return self.positions[self._row_of[key, arm]]

    def revise(self, key: str, arm: str, reward: float | None, weight: float) -> None:
        """Replace the reward and the weight of a settlement; reward None: remove it."""
        if reward is None:
            self._remove(self._row_of.pop((key, arm)))
        else:
            row = self._row_of[key, arm]
            self.rewards[row], self.weights[row] = reward, weight

    def _remove(self, row: int) -> None:
        """Rows after it move up: a few, mostly, since corrections come soon."""
        self.read -= row < self.read
        self.rows.remove(row)
        for column in self._columns:
            del column[row]
        for place in range(row, len(self)):
            self._row_of[self.keys[place], self.arms[place]] = place

    @property
    def overfull(self) -> bool:
        return self.limit is not None and len(self) > self.limit + self.limit // 8

    def trim(self) -> None:
        """Down to the limit, by whole events; the last event stays even if it is larger."""
        if self.limit is None or len(self) <= self.limit:
            return
        first = self.positions[-self.limit]
        if self.positions[-self.limit - 1] == first != self.positions[-1]:
            first += 1
        self.keep(np.array(self.positions) >= first)

    def limited(self, limit: int | None) -> "Memory":
        """Set another limit, keep to it, and return the memory."""
        self.limit = limit
        self.trim()
        return self

    def drop(self, columns: list[int], since: int) -> None:
        """Forget what was settled before position `since` where one of the columns of x is not 0;
        no columns: all of it."""
        touched = np.full(len(self), not columns)
        for column in columns:
            touched |= np.nan_to_num(self.rows.column(column)) != 0
        self.keep(~(touched & (np.array(self.positions) < since)))

    def forget(self, keys: Collection[str]) -> None:
        """Forget the settlements of these decisions."""
        gone = set(keys)
        if not gone.isdisjoint(self.keys):
            self.keep(np.array([key not in gone for key in self.keys]))

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(mask).tolist()
        self.read = int(np.count_nonzero(mask[: self.read]))
        self.rows.keep(rows)
        for column in self._columns:
            column[:] = [column[row] for row in rows]
        self._row_of = {
            pair: row for row, pair in enumerate(zip(self.keys, self.arms, strict=True))
        }

    def events(self) -> Iterator[tuple[int, list[int]]]:
        """Log position and rows of each event, in order."""
        for position, rows in groupby(range(len(self)), key=self.positions.__getitem__):
            yield position, list(rows)

    def arrays(self) -> dict[str, Stored]:
        """Weights are left out where all are 1, and what was imported where nothing was."""
        weighs = any(weight != 1 for weight in self.weights)
        return {
            "positions": np.array(self.positions, np.int64),
            "keys": pack_names(self.keys),
            "arms": pack_names(self.arms),
            "rewards": np.array(self.rewards, float),
            **({"weights": np.array(self.weights)} if weighs else {}),
            **({"imported": np.array(self.imported)} if any(self.imported) else {}),
            **self.rows.arrays(),
            "read": np.array([self.read]),
        }

    def restore(self, arrays: dict[str, Stored]) -> None:
        self.positions, self.rewards = arrays["positions"].tolist(), arrays["rewards"].tolist()
        self.keys, self.arms = unpack_names(arrays["keys"]), unpack_names(arrays["arms"])
        self.weights = arrays.get("weights", np.ones(len(self))).tolist()
        self.imported = arrays.get("imported", np.zeros(len(self), bool)).tolist()
        self.rows.restore(arrays, len(self))
        [self.read] = arrays["read"].tolist()
        self.keep(np.ones(len(self), bool))
