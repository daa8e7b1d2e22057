"""A log as an archiver reads it: what is new, and whether it still is the log that was archived."""

import math
from contextlib import suppress
from hashlib import blake2b

from service.errors import Damaged, LogGap
from service.log.replay import pages, take_anchor
from service.log.stores import Store
from service.log.stores.base import Record
from service.maintenance.archive.index import Cursor
from service.state.events import Tombstone, decode_decision, decode_event

EVENTS = 5_000
"""Taken in one transaction, of which each is synced to disk."""

DUE = 1_000
"""Damaged rows that stay due, and are ignored when the oldest that is due is looked for."""


class Source:
    """One experiment of a store."""

    def __init__(self, store: Store, experiment: str) -> None:
        self._store, self._name = store, experiment
        self._newest_row, self._newest_at = 0, 0.0

    async def unread(self, cursor: Cursor) -> list[Record]:
        """Events after the cursor. Raises LogGap where the event at it is not the archived one."""
        position = cursor.position
        after = max(position - 1, 0)
        records: list[Record] = await anext(pages(self._store, self._name, after, EVENTS), [])
        if not records and position:
            first: list[Record] = await anext(pages(self._store, self._name), [])
            if first and first[0].position < position:
                raise self._gap(f"ends before position {position}, which is archived")
        if taken := take_anchor(records, position):
            same = digest(taken.payload) == cursor.digest
            if not same and not isinstance(decode_event(taken.payload), Tombstone):
                raise self._gap(f"has another event at position {position} than is archived")
        if records and position and records[0].position != position + 1:
            raise self._gap(
                f"goes on at position {records[0].position}, and is archived up to {position}: "
                "what lay between was trimmed"
            )
        return records

    def _gap(self, what: str) -> LogGap:
        return LogGap(f"experiment {self._name}: the log {what}. Archive it to another folder")

    async def newest(self) -> float:
        """When the newest row was made, unix seconds: where nothing is rewarded, rows alone tell
        the time."""
        row = (await self._store.describe(self._name, whole=False)).row
        if row > self._newest_row:
            self._newest_row = row
            for kept in await self._store.decisions(self._name, row - 1, 1):
                with suppress(Damaged):
                    self._newest_at = max(self._newest_at, decode_decision(kept.payload).at)
        return self._newest_at

    async def oldest_due(self) -> float:
        """No decision with an earlier `reward_by` (unix seconds) is due."""
        for limit in (1, DUE):  # damaged ones stay due
            payloads = await self._store.due(self._name, math.inf, limit)
            for payload in payloads:
                with suppress(Damaged):
                    return decode_decision(payload).reward_by
            if len(payloads) < limit:
                return math.inf
        return -math.inf

    async def holds_row(self, cursor: Cursor) -> bool:
        """Whether the row archived last is where it was, or may have been trimmed. Raises LogGap
        where another row stands there."""
        if cursor.id is None:
            return True
        found = await self._store.decisions(self._name, cursor.row - 1, 1)
        if not found or found[0].number != cursor.row:  # rows are trimmed from the first on
            first = await self._store.decisions(self._name, 0, 1)
            return not first or first[0].number > cursor.row
        if (found[0].id or _id_of(found[0].payload)) != cursor.id:
            raise self.another_row(cursor)
        return True

    def another_row(self, cursor: Cursor) -> LogGap:
        return LogGap(
            f"experiment {self._name}: row {cursor.row} of the store is not the one archived "
            f"there, decision {cursor.id}: the store came back from a copy, or is another one. "
            "Archive it to another folder"
        )


def digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=8).digest()


def _id_of(payload: bytes) -> str | None:
    try:
        return decode_decision(payload).id
    except Damaged:
        return None
