"""Unlogged: decisions that are answered before the log has them."""

from collections.abc import Collection
from itertools import islice

import msgspec

from service.log.stores.base import DecisionRow
from service.observability.telemetry import Telemetry


class StoredDecision(msgspec.Struct, frozen=True):
    """The decision under an id. logged: in the log; else it waits in memory or is lost."""

    payload: bytes
    logged: bool


class Unlogged:
    """At most `limit` rows in memory, oldest first, each id once."""

    def __init__(self, limit: int, telemetry: Telemetry) -> None:
        self._limit, self._telemetry = limit, telemetry
        self._rows: dict[tuple[str, str], DecisionRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._limit

    def find(self, experiment: str, id: str) -> StoredDecision | None:
        row = self._rows.get((experiment, id))
        return None if row is None else StoredDecision(row.payload, logged=False)

    def oldest(self, count: int) -> list[DecisionRow]:
        return list(islice(self._rows.values(), count))

    def answer(self, row: DecisionRow, *, may_be_logged: bool = False) -> StoredDecision:
        """Keep the row, and answer without the log. An earlier row of its id stays."""
        self._telemetry.unlogged.inc()
        return StoredDecision(self.put(row, lost=not may_be_logged).payload, logged=False)

    def put(self, row: DecisionRow, *, lost: bool = True) -> DecisionRow:
        """The row that its id has from now on. lost: it is, where there is no room."""
        key = row.experiment, row.id
        if key not in self._rows and self.full:
            if lost:
                self._telemetry.overflowed.inc()
            return row
        return self._rows.setdefault(key, row)

    def drop(self, row: DecisionRow) -> None:
        """Nothing where it is not here."""
        self._rows.pop((row.experiment, row.id), None)

    def forget(self, experiment: str, words: Collection[str]) -> list[bytes]:
        """Drop the rows that hold one of these words; their payloads."""
        sought = [word.encode() for word in words]
        gone = [
            row
            for row in self._rows.values()
            if row.experiment == experiment and any(word in row.payload for word in sought)
        ]
        for row in gone:
            self.drop(row)
        return [row.payload for row in gone]
