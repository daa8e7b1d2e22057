"""Unlogged: decisions that are answered before the log has them."""

from collections.abc import Collection
from math import exp, expm1, inf

import msgspec

from service.clock import Clock
from service.log.stores.base import DecisionRow
from service.telemetry.metrics import Telemetry

ROW_BYTES = 300
"""Memory of a row beside its payload: 282 bytes as `tracemalloc` counts them."""

RATE_SECONDS = 60.0
"""Seconds over which the rate of decisions is averaged: the present rate, not that of the night."""

Key = tuple[str, str]
"""Experiment and id."""


class StoredDecision(msgspec.Struct, frozen=True):
    """The decision under an id. logged: in the log; else it waits in memory or is lost."""

    payload: bytes
    logged: bool


class Unlogged:
    """Rows in memory, oldest first, each id once.

    bytes   that the rows take, at most `most_bytes`
    """

    def __init__(self, most_bytes: int, telemetry: Telemetry, clock: Clock) -> None:
        self._most_bytes, self._telemetry, self._clock = most_bytes, telemetry, clock
        self._rows: dict[Key, DecisionRow] = {}
        self._began = self._counted_at = clock.monotonic()
        self._recent_bytes = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def count(self, row: DecisionRow) -> None:
        """Count a row of the live traffic, whether it comes here or not."""
        now = self._clock.monotonic()
        self._recent_bytes = self._decayed(now) + size_of(row)
        self._counted_at = now

    def _decayed(self, now: float) -> float:
        return self._recent_bytes * exp((self._counted_at - now) / RATE_SECONDS)

    def seconds_left(self) -> float:
        """Return how long an outage may last until rows are lost, at the rate of the last minute;
        infinite without traffic."""
        now = self._clock.monotonic()
        weight = -expm1(-max(now - self._began, 1.0) / RATE_SECONDS)  # of the time since the start
        rate = self._decayed(now) / (RATE_SECONDS * weight)
        return (self._most_bytes - self.bytes) / rate if rate else inf

    def has_room_for(self, row: DecisionRow) -> bool:
        return self.bytes + size_of(row) <= self._most_bytes

    def find(self, experiment: str, id: str) -> StoredDecision | None:
        row = self._rows.get((experiment, id))
        return None if row is None else StoredDecision(row.payload, logged=False)

    def oldest(self, most_bytes: int) -> list[DecisionRow]:
        """Return the oldest rows up to a number of bytes, at least one where there is one."""
        rows = list[DecisionRow]()
        for row in self._rows.values():
            most_bytes -= size_of(row)
            if most_bytes < 0 and rows:
                break
            rows.append(row)
        return rows

    def answer(self, row: DecisionRow, *, may_be_logged: bool = False) -> StoredDecision:
        """Keep the row, and answer without the log. An earlier row of its id stays."""
        self._telemetry.unlogged.inc()
        return StoredDecision(self.put(row, lost=not may_be_logged).payload, logged=False)

    def put(self, row: DecisionRow, *, lost: bool = True) -> DecisionRow:
        """Keep a row. Return the one that its id has from now on.

        lost: count the row as lost where there is no room.
        """
        key = row.experiment, row.id
        earlier = self._rows.get(key)
        if earlier is not None:
            return earlier
        if not self.has_room_for(row):
            if lost:
                self._telemetry.lost.inc()
            return row
        self.bytes += size_of(row)
        self._rows[key] = row
        return row

    def drop(self, row: DecisionRow) -> None:
        """Drop a row, if it is here."""
        gone = self._rows.pop((row.experiment, row.id), None)
        if gone is not None:
            self.bytes -= size_of(gone)

    def forget(self, experiment: str, words: Collection[str]) -> list[bytes]:
        """Drop the rows that hold one of these words. Return their payloads."""
        sought = [word.encode() for word in words]
        gone = [
            row
            for row in self._rows.values()
            if row.experiment == experiment and any(word in row.payload for word in sought)
        ]
        for row in gone:
            self.drop(row)
        return [row.payload for row in gone]


def size_of(row: DecisionRow) -> int:
    """Return the bytes that a row takes in memory."""
    return len(row.payload) + ROW_BYTES
