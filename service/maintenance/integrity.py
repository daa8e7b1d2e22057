"""Integrity: everything that the store holds is read again and again, slowly, beside the requests,
so that damage is known before somebody needs what is damaged."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from service.errors import StoreError, StoreUnavailable
from service.log.replay import skipped_positions
from service.log.stores import Store
from service.log.stores.base import KeptRow, Record
from service.log.stores.store import START
from service.observability.telemetry import Telemetry
from service.state.events import decode_decision, decode_event
from service.state.fold import State

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAGE = 100
"""Items of one read, which other reads wait for: some milliseconds."""
BETWEEN_SECONDS = 600.0
"""Between two passes."""


class Integrity:
    """Counts in `forage_integrity_faults` what cannot be read."""

    def __init__(self, store: Store, items_per_second: float, telemetry: Telemetry) -> None:
        self._store, self._clock = store, telemetry.clock
        self._pause_seconds = PAGE / items_per_second if items_per_second else 0.0
        self._gauge, self._passed = telemetry.integrity_faults, telemetry.integrity_passed
        self._faults = self._most = 0

    async def run(self) -> None:
        """Pass after pass, for ever; not at all at a rate of 0."""
        while self._pause_seconds:
            await asyncio.sleep(self._pause_seconds)
            try:
                await self.check()
            except StoreUnavailable as fault:
                logger.warning("the check of the store's integrity waits for it: %s", fault)
            await asyncio.sleep(BETWEEN_SECONDS)

    async def check(self) -> int:
        """One pass; how many faults it found. Raises StoreUnavailable."""
        self._faults = 0
        names = await self._attempt("the names of experiments", self._store.experiments) or []
        for name in names:
            await self._check(name)
        self._most = self._faults
        self._gauge.set(self._faults)  # fewer than before, where one was mended
        self._passed.set(self._clock.time())
        return self._faults

    async def _check(self, name: str) -> None:
        said = f"experiment {name}"
        skips = await self._attempt(said, lambda: skipped_positions(self._store, name)) or ()
        instant = await self._attempt(said, lambda: self._store.describe(name))
        if instant is not None:
            await self._events(name, instant.position, skips)
            await self._rows(name, instant.row)
        cursor = START
        while page := await self._attempt(
            f"{said}: marks after {cursor!r}",
            lambda: self._store.list_marks(name, cursor, PAGE),  # noqa: B023
        ):
            cursor = page[1]
            if not cursor:
                break
        for snapshot in await self._attempt(said, lambda: self._store.snapshots(name)) or ():
            try:
                await asyncio.to_thread(State.restore, snapshot)
            except StoreError as fault:
                self._tell(f"{said}: snapshot at {snapshot.position}", fault)
        for key in await self._attempt(said, lambda: self._store.blob_keys(name)) or ():
            blob = await self._attempt(f"{said}: {key}", lambda: self._store.blob(name, key))  # noqa: B023
            if blob is not None and hashlib.sha256(blob).hexdigest() != key:
                self._tell(f"{said}: artifact {key}", "its hash is another")

    async def _events(self, name: str, end: int, skips: Sequence[int] | frozenset[int]) -> None:
        """Up to the last position. Behind what cannot be read it goes on."""
        after, dense = 0, False
        while after < end:
            page = await self._attempt(
                f"experiment {name}: events after position {after}",
                lambda: self._store.read(name, after, PAGE),  # noqa: B023
            )
            if page is None:
                after, dense = after + PAGE, False
                continue
            if not page:
                return
            for record in page:
                if dense and record.position != after + 1:
                    self._tell(f"experiment {name}: position {after + 1}", "is missing")
                after, dense = record.position, True
                if after not in skips:
                    self._decode(f"experiment {name}: event {after}", decode_event, record)

    async def _rows(self, name: str, end: int) -> None:
        """Up to the last number; as `_events`."""
        after = 0
        while after < end:
            page = await self._attempt(
                f"experiment {name}: decision rows after {after}",
                lambda: self._store.decisions(name, after, PAGE),  # noqa: B023
            )
            if page is None:
                after += PAGE
                continue
            if not page:
                return
            after = page[-1].number
            for row in page:
                self._decode(f"experiment {name}: decision {row.id}", decode_decision, row)
            ids = [row.id for row in page]
            await self._attempt(  # as a repeat or an explanation finds them
                f"experiment {name}: decisions by id, up to row {after}",
                lambda: self._store.get(name, "decisions", ids),  # noqa: B023
            )

    def _decode(self, what: str, decode: Callable[[bytes], object], item: Record | KeptRow) -> None:
        try:
            decode(item.payload)
        except StoreError as fault:
            self._tell(what, fault)

    async def _attempt(self, what: str, read: Callable[[], Awaitable[T]]) -> T | None:
        """None where it cannot be read. Raises StoreUnavailable."""
        await asyncio.sleep(self._pause_seconds)
        try:
            return await read()
        except StoreUnavailable:
            raise
        except StoreError as fault:
            self._tell(what, fault)
            return None

    def _tell(self, what: str, fault: object) -> None:
        self._faults += 1
        logger.error("%s is damaged: %s", what, fault)
        self._most = max(self._most, self._faults)
        self._gauge.set(self._most)
