"""The archive of a log: decisions joined with their rewards, as Parquet by day.

A decision is final once nothing can change it: its `accept_until` has passed, no default reward is
due to it, and all events up to the end of the log as of then are taken. Final rows are written
once, in the order of their numbers. Rewards come from the log itself, where they stay as long as
this reader needs them; marks are forgotten earlier.
"""

import logging
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time

from service.errors import ConfigurationError, Damaged
from service.log.reading import Progress, Say
from service.log.replay import ROWS, read_event, skipped_positions
from service.log.stores import Store
from service.log.stores.base import KeptRow, Record
from service.maintenance.archive.columns import ArchivedRow, check
from service.maintenance.archive.files import DAY_S, Drafts, Folder, draft_of
from service.maintenance.archive.index import NO_REWARDS, Change, Cursor, Index, change_of
from service.maintenance.archive.source import Source, digest
from service.state.events import AnyEvent, Decision, Erased, Learned, decode_decision

logger = logging.getLogger(__name__)

MARGIN_S = 600.0
"""How long after `accept_until`, by the log's own time, a decision is final. A service accepts a
reward by its own clock and commits it a little later; the log's time may be another service's.
Clocks that are watched differ by less than a second, a commit takes seconds at most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """part_rows: of a part at most, give or take a page; part_seconds: how long a follower lets
    final rows wait for others."""

    part_rows: int = 50_000
    part_seconds: float = 600.0


class Archive:
    """Of one experiment. Raises LogGap where the log or the store is not the one archived so far.

    clock   unix seconds: a service whose clock is ahead makes nothing final before its time
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        folder: Folder,
        index: Index,
        sizes: Sizes,
        say: Say | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.name, self._progress, self._clock = experiment, Progress(say), clock
        self._store, self._source = store, Source(store, experiment)
        self._folder, self._index, self._sizes = folder, index, sizes
        self._newest = 0.0
        self._damaged = set[int]()
        if index.cursor == Cursor() and folder.files("part"):
            raise ConfigurationError(
                f"{folder.path} has parts, but {folder.index_path.name} is gone, which says how "
                "far they go: bring it back, or archive to another folder"
            )
        folder.clear(self.cursor.row)
        self._begin()

    @property
    def cursor(self) -> Cursor:
        """What is durable in the archive."""
        return self._index.cursor

    @property
    def unreadable(self) -> int:
        """Rows that were left out because they are damaged."""
        return len(self._damaged)

    def _begin(self) -> None:
        """The next parts, from the cursor on; `_last`: the last row in them or left out."""
        self._drafts = Drafts(self._folder, "part")
        self._positions = array("q")
        self._last = self.cursor.row, self.cursor.id
        self._since = monotonic()

    def abandon(self) -> None:
        """Drop parts that are not archived yet; the store still holds their rows."""
        self._drafts.discard()
        self._folder.clear(self.cursor.row)
        self._begin()

    def close(self) -> None:
        self._drafts.discard()
        self._index.close()

    # -- rounds --------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Take the events that there are, then the rows that are final, part by part."""
        if not await self._source.holds_row(self.cursor):
            await self._take_events()  # the log says so if it was erased
            if self.cursor.id is not None:
                raise self._source.another_row(self.cursor)
        await self._take_events()
        self._newest = await self._source.newest()
        while page := await self._store.decisions(self.name, self._last[0], ROWS):
            # The order matters: a row that was read before and is not due now has been settled by
            # an event that is read after.
            due = await self._source.oldest_due()
            if await self._take_events():
                continue  # the page may hold decisions that were erased
            if not self._take_final(page, due):
                break
            if self._drafts.full(self._sizes.part_rows):
                self.flush()

    def ripe(self) -> bool:
        """Whether rows have waited enough for others: a day is complete, or it is long ago."""
        if self._last[0] == self.cursor.row:
            return False
        day_end = (self._drafts.oldest // DAY_S + 1) * DAY_S if self._drafts.rows else math.inf
        complete = self._drafts.newest > day_end + MARGIN_S
        return complete or monotonic() >= self._since + self._sizes.part_seconds

    def flush(self) -> None:
        """Archive the rows taken so far."""
        number, last_id = self._last
        if number == self.cursor.row:
            return
        if drafts := self._drafts.close():
            self.forget_open()  # they may hold the same rows, and no row may be there twice
            self._folder.put(drafts)
        cursor = replace(self.cursor, row=number, id=last_id)
        self._index.archived(self._positions, cursor, self._drafts.newest)
        self._begin()

    async def write_open(self) -> None:
        """Rewrite the files of rows that are not final."""
        while True:
            paths, drafts = list[Path](), Drafts(self._folder, "open")
            number = self.cursor.row
            while page := await self._store.decisions(self.name, number, ROWS):
                self._join(drafts, page, [self._decoded(row) for row in page], final=False)
                if drafts.full(self._sizes.part_rows):
                    paths += drafts.close()
                    drafts = Drafts(self._folder, "open")
                number = page[-1].number
                self._progress.tell(f"{self.name}: rows up to {number:,}")
            paths += drafts.close()
            if not await self._take_events():
                break
            # Something was erased meanwhile: the drafts may hold it.
            self._folder.remove_all([draft_of(path) for path in paths])
        self.forget_open()
        self._folder.put(paths)

    def forget_open(self) -> None:
        """Remove the files of rows that were not final."""
        self._folder.remove_all(self._folder.files("open"))

    # -- rows ----------------------------------------------------------------------------------

    def _take_final(self, page: Sequence[KeptRow], due: float) -> bool:
        """Take the rows of a page that are final, in order; whether all were."""
        until = min(max(self.cursor.time, self._newest), self._clock()) - MARGIN_S
        decisions = list[Decision | None]()
        if self._last[0] == self.cursor.row:
            self._since = monotonic()
        for row in page:
            decision = self._decoded(row)
            if decision and not (decision.accept_until < until and decision.reward_by < due):
                break
            decisions.append(decision)
            self._last = row.number, decision.id if decision else None
        self._positions.extend(self._join(self._drafts, page, decisions, final=True))
        self._progress.tell(f"{self.name}: rows up to {self._last[0]:,}")
        return len(decisions) == len(page)

    def _join(
        self,
        drafts: Drafts,
        page: Sequence[KeptRow],
        decisions: Sequence[Decision | None],
        *,
        final: bool,
    ) -> list[int]:
        """Add rows with their rewards; returns the positions of the events of these."""
        found = self._index.find([decision.id for decision in decisions if decision])
        drafts.add(
            ArchivedRow(row.number, decision, found.get(decision.id, NO_REWARDS), final)
            for row, decision in zip(page, decisions, strict=False)
            if decision
        )
        return [position for each in found.values() for position in each.positions]

    def _decoded(self, row: KeptRow) -> Decision | None:
        """None where the row is left out: damaged, erased, or made before the archive begins."""
        try:
            decision = decode_decision(row.payload)
            check(decision)
        except Damaged as fault:
            if row.number not in self._damaged:
                self._damaged.add(row.number)
                logger.error("experiment %s: row %d is left out: %s", self.name, row.number, fault)
            return None
        left_out = decision.at < self.cursor.begins or self._index.is_erased(decision.id)
        return None if left_out else decision

    # -- events --------------------------------------------------------------------------------

    async def _take_events(self) -> bool:
        """Take events up to the end of the log; whether something was erased by them."""
        any_erased, skips = False, await skipped_positions(self._store, self.name)
        while records := await self._source.unread(self.cursor):
            changes, erased = list[tuple[int, Change]](), set[str]()
            begins, log_time = self.cursor.begins, self.cursor.time
            if self.cursor.position == 0 and records[0].position > 1:
                begins = self._begin_late(records[0], skips)
            for record in records:
                event = self._event(record, skips)
                log_time = max(log_time, event.at)
                if isinstance(event, Learned):
                    changes.append((record.position, change_of(event)))
                elif isinstance(event, Erased):
                    erased.update(event.decisions)
            if erased:
                any_erased = True
                self.abandon()
                self._folder.erase(erased)
                self._index.erase(erased)
            last = records[-1]
            position, checksum = last.position, digest(last.payload)
            reached = replace(self.cursor, position=position, digest=checksum)
            self._index.take(changes, replace(reached, time=log_time, begins=begins))
            self._progress.tell(f"{self.name}: events up to {position:,}")
        return any_erased

    def _event(self, record: Record, skips: frozenset[int]) -> AnyEvent:
        try:
            return read_event(record, skips)
        except Damaged as fault:
            raise Damaged(f"experiment {self.name}, position {record.position}: {fault}") from fault

    def _begin_late(self, first: Record, skips: frozenset[int]) -> float:
        """Events were trimmed before the archive began: leave out decisions that lack some."""
        begins = self._event(first, skips).at + MARGIN_S
        logger.warning(
            "experiment %s: the log begins at position %d: decisions made before unix time %.0f "
            "are left out, because their rewards were trimmed",
            self.name,
            first.position,
            begins,
        )
        return begins
