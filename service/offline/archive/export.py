"""Export decisions and events of a log to an archive, once or again and again beside a service."""

import asyncio
import fcntl
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from msgspec.json import decode

from service.errors import ConfigurationError, Damaged, LogGap, StoreLocked, StoreUnavailable
from service.log.reading import SILENT, Progress, experiments_of, reading
from service.log.replay import PAGE, ROWS_PER_PAGE, skipped_positions
from service.log.stores import Store
from service.offline.archive.columns import (
    DECISIONS,
    EVENTS,
    ArchiveRow,
    day_of,
    decision_row,
    event_rows,
    microseconds,
)
from service.offline.archive.files import ArchiveFiles, Draft, Packed, digest, pack
from service.offline.processes import CountMore, Processes, sharing, uncounted
from service.security.files import PRIVATE
from service.state.decisions import decode_decision, time_of
from service.state.events import Erased, Tombstone, decode_event, has_erased

logger = logging.getLogger(__name__)

FILE_BYTES = 12 * 2**20
"""Bytes of payloads in one file: 20,000 decisions among fifty arms."""

EXPORT_SECONDS = 600.0
"""Seconds from one export to the next of `--follow`."""

Records = list[tuple[int, bytes]]
"""Numbers in the log, and payloads."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Records that one run added. damaged: decisions that the archive leaves out."""

    experiment: str
    decisions: int
    events: int
    damaged: int


class Exporter:
    """Bring the archive of one experiment up to date.

    A file of decisions is written after all events that were logged before: an erasure deletes rows
    some time after its event, and rows read in between must not enter the archive.

    processes   that write the files; None: this one does
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        archive: Path,
        progress: Progress = SILENT,
        file_bytes: int = FILE_BYTES,
        processes: Processes | None = None,
    ) -> None:
        self.name, self._store, self._progress = experiment, store, progress
        self._processes = processes
        self._file_bytes = file_bytes
        self.decisions = ArchiveFiles(archive / experiment / "decisions", DECISIONS, "id")
        self.events = ArchiveFiles(archive / experiment / "events", EVENTS, "decision")
        bodies = self.events.bodies(Erased.__name__)
        self._erased: set[str] = {one for body in bodies for one in decode(body)["decisions"]}
        self._newly_erased: set[str] = set()
        self._skips: frozenset[int] = frozenset()
        self._damaged = 0

    async def run(self) -> Exported:
        """Export all new records. Raises LogGap where the log is not the archived one, or lacks
        events that the archive lacks too; Damaged where an event or a file cannot be read."""
        self._skips = await skipped_positions(self._store, self.name)
        await self._check_events()
        events, decisions = await self._export_events(), 0
        await self._check_rows()
        async for draft, packed in self._packed(
            self.decisions, self._read_rows, self._day_of_decision, pack_decisions
        ):
            events += await self._export_events()
            for number, fault in packed.damaged:
                self._leave_out(number, fault)
            self.decisions.add(draft, packed, self._erased)
            decisions += packed.rows
        return Exported(self.name, decisions, events, self._damaged)

    async def _export_events(self) -> int:
        """Export events up to the end of the log; returns their number."""
        count = 0
        async for draft, packed in self._packed(
            self.events, self._next_events, self._day_of_event, pack_events
        ):
            for position, fault in packed.damaged:
                raise Damaged(f"experiment {self.name}, position {position}: {fault}")
            if self._newly_erased:  # first: once their event is archived, nobody looks for them
                self._erased |= self._newly_erased
                self.decisions.erase(self._newly_erased)
                self.events.erase(self._newly_erased)
                self._newly_erased = set()
            self.events.add(draft, packed, self._erased)
            count += packed.rows
        return count

    async def _packed(
        self,
        files: ArchiveFiles,
        read: Callable[[int], Awaitable[Records]],
        day_of_record: Callable[[int, bytes], str | None],
        pack_draft: Callable[..., Awaitable[Packed]],
    ) -> AsyncIterator[tuple[Draft, Packed]]:
        """Yield the drafts in order, each in a file. Several processes pack them while the next
        ones are read."""
        most = 1 if self._processes is None else 2 * self._processes.count
        under_way = deque[tuple[Draft, asyncio.Task[Packed]]]()
        try:
            async for draft in self._drafts(files, read, day_of_record):
                under_way.append((draft, asyncio.create_task(self._pack(pack_draft, draft, files))))
                if len(under_way) >= most:
                    first, packing = under_way.popleft()
                    yield first, await packing
            while under_way:
                first, packing = under_way.popleft()
                yield first, await packing
        finally:
            for _, packing in under_way:
                packing.cancel()

    async def _pack(
        self, pack_draft: Callable[..., Awaitable[Packed]], draft: Draft, files: ArchiveFiles
    ) -> Packed:
        path = files.draft_path(draft)
        if self._processes is None:
            return await pack_draft(draft, path)
        packed: Packed = await self._processes.run(pack_draft, draft, path)
        return packed

    async def _drafts(
        self,
        files: ArchiveFiles,
        read: Callable[[int], Awaitable[Records]],
        day_of_record: Callable[[int, bytes], str | None],
    ) -> AsyncIterator[Draft]:
        """Yield the records after the last archived one, file by file."""
        after, _, day = files.cursor
        draft = Draft(day)
        while records := await read(after):
            for after, payload in records:
                own = day_of_record(after, payload)
                day = max(day, own or day)
                if draft.records and (day > draft.day or draft.size >= self._file_bytes):
                    yield draft
                    draft = Draft(day)
                draft.day = day
                draft.add(after, payload, left_out=own is None)
            self._progress.tell(f"{self.name}: {files.kind} up to {after:,}")
        if draft.records:
            yield draft

    # -- the log -------------------------------------------------------------------------------

    async def _check_events(self) -> None:
        """Compare the last archived event with the log's, which may lack what was erased since."""
        number, archived, _ = self.events.cursor
        end = (await self._store.describe(self.name, whole=False)).position
        if end < number:
            raise self._refusal(f"the log ends at position {end:,}, the archive at {number:,}")
        found = dict(await self._read_events(max(number - 1, 0))).get(number)
        if found and digest(found) != archived and not _has_erased(found):
            raise self._refusal(f"log and archive differ at position {number:,}")

    async def _check_rows(self) -> None:
        """Compare the last archived decision with the store's, unless it was trimmed or erased."""
        number, archived, _ = self.decisions.cursor
        found = dict(await self._read_rows(max(number - 1, 0))).get(number)
        if found:
            same = digest(found) == archived
        else:
            first = await self._store.decisions(self.name, 0, 1)
            trimmed = not first or first[0].number > number
            same = trimmed or not self.decisions.holds(number)
        if not same:
            raise self._refusal(f"store and archive differ at decision row {number:,}")

    async def _read_rows(self, after: int) -> Records:
        rows = await self._store.decisions(self.name, after, ROWS_PER_PAGE)
        return [(row.number, row.payload) for row in rows]

    async def _read_events(self, after: int) -> Records:
        events = await self._store.read(self.name, after, PAGE)
        return [(event.position, event.payload) for event in events]

    async def _next_events(self, after: int) -> Records:
        events = await self._read_events(after)
        if events and events[0][0] > after + 1:
            trimmed = f"events before position {events[0][0]:,} were trimmed"
            if after:
                raise self._refusal(f"{trimmed}, and the archive ends at {after:,}")
            logger.warning("experiment %s: %s: the archive lacks them", self.name, trimmed)
        return events

    def _refusal(self, reason: str) -> LogGap:
        return LogGap(f"experiment {self.name}: {reason}. Export it to another folder")

    # -- records -------------------------------------------------------------------------------

    def _day_of_decision(self, number: int, payload: bytes) -> str | None:
        """Return the day of a decision. None: the archive leaves it out."""
        try:
            return day_of(microseconds(time_of(payload)))
        except Damaged as fault:
            self._leave_out(number, str(fault))
            return None

    def _leave_out(self, number: int, fault: str) -> None:
        self._damaged += 1
        logger.error("experiment %s: decision row %d is left out: %s", self.name, number, fault)

    def _day_of_event(self, position: int, payload: bytes) -> str | None:
        """Return the day of an event. None: the archive leaves it out."""
        if position in self._skips:
            return None
        try:
            event = decode_event(payload)
            if isinstance(event, Erased):
                self._newly_erased.update(event.decisions)
            return None if isinstance(event, Tombstone) else day_of(microseconds(event.at))
        except Damaged as fault:
            raise Damaged(f"experiment {self.name}, position {position}: {fault}") from fault


async def pack_decisions(draft: Draft, path: Path, count: CountMore = uncounted) -> Packed:
    """Write the rows of decisions to a file, in this process or in one of several."""

    def rows_of(number: int, payload: bytes) -> Sequence[ArchiveRow]:
        return [decision_row(number, decode_decision(payload))]

    return pack(draft, DECISIONS, rows_of, path)


async def pack_events(draft: Draft, path: Path, count: CountMore = uncounted) -> Packed:
    """Write the rows of events to a file, in this process or in one of several."""

    def rows_of(position: int, payload: bytes) -> Sequence[ArchiveRow]:
        return event_rows(position, decode_event(payload))

    return pack(draft, EVENTS, rows_of, path)


async def export(
    url: str,
    archive: Path,
    experiment: str | None,
    progress: Progress = SILENT,
    parallel: int = 1,
) -> list[Exported]:
    """Export one experiment, or all. Raises NotFound, StoreError, ConfigurationError.

    parallel   processes that write the files
    """
    with locked(archive):
        async with reading(url) as store, sharing(parallel) as processes:
            names = await experiments_of(store, experiment)
            return [
                await Exporter(store, name, archive, progress, processes=processes).run()
                for name in names
            ]


async def follow(
    url: str,
    archive: Path,
    experiment: str | None,
    service_url: str,
    headers: Mapping[str, str] | None = None,
    parallel: int = 1,
) -> int:
    """Export every ten minutes until cancelled, and report to the service what is archived, so that
    it trims nothing else. Wait while the store or the disk is away.

    headers    of requests to the service: its key
    parallel   processes that write the files
    """
    with locked(archive):
        async with httpx.AsyncClient(timeout=10, headers=headers) as client:
            while True:
                try:
                    async with (
                        reading(url, wait=lambda: True) as store,
                        sharing(parallel) as processes,
                    ):
                        for name in await store.experiments():
                            if experiment in (None, name):
                                exporter = Exporter(store, name, archive, processes=processes)
                                await report(client, service_url, exporter)
                                await exporter.run()
                                await report(client, service_url, exporter)
                except (StoreUnavailable, OSError) as fault:
                    logger.warning("the export is tried again in ten minutes: %s", fault)
                await asyncio.sleep(EXPORT_SECONDS)


async def report(client: httpx.AsyncClient, service_url: str, exporter: Exporter) -> None:
    """Tell the service how far the archive is. A lost report is harmless: trimming waits longer."""
    url = f"{service_url.rstrip('/')}/experiments/{exporter.name}/readers/archive"
    taken = {"position": exporter.events.cursor.number, "row": exporter.decisions.cursor.number}
    try:
        (await client.put(url, json=taken)).raise_for_status()
    except httpx.HTTPError as fault:
        logger.warning("the service does not know how far the archive is: %s", fault)


@contextmanager
def locked(archive: Path) -> Iterator[None]:
    """Lock out other processes that write this archive. Raises StoreLocked, ConfigurationError."""
    try:
        archive.mkdir(parents=True, exist_ok=True)
        lock = os.open(archive / ".lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as fault:
        raise ConfigurationError(f"{archive}: {fault.strerror}") from fault
    with os.fdopen(lock):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise StoreLocked(f"another forage export writes {archive}") from fault
        yield


def _has_erased(payload: bytes) -> bool:
    try:
        return has_erased(decode_event(payload))
    except Damaged:
        return False
