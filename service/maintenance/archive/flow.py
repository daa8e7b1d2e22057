"""The archive of a log: decisions and what came of them, joined, as Parquet by day.

A decision is final once nothing can change it any more: rewards are accepted until its
`accept_until`, no default reward is due to it, and all events up to the log's end as of then are
taken. Final rows are written once, in the order of their numbers. Outcomes are joined from the log
itself, where they stay as long as this reader needs them; marks are forgotten earlier.
"""

import logging
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time

from service.errors import ConfigurationError, Damaged
from service.log.replay import read_event
from service.log.stores import Store
from service.log.stores.base import KeptRow, Record
from service.maintenance.archive.columns import Row, check
from service.maintenance.archive.files import DAY_S, Drafts, Folder
from service.maintenance.archive.index import NOTHING, Change, Cursor, Index, change_of
from service.maintenance.archive.source import Source, digest
from service.state.events import AnyEvent, Decision, Erased, Learned, decode_decision

logger = logging.getLogger(__name__)

MARGIN_S = 600.0
"""How long after `accept_until`, by the log's own time, a decision is final. A reward is accepted
by the clock of one service and is in the log once it is committed; the log's time may be of another
one. Clocks that are watched differ by less than a second, a commit takes seconds at most."""

ROWS = 200
"""Decision rows read at a time: of fifty arms they are 2 KiB each, of 10,000 arms 400 KiB."""

SAY_SECONDS = 0.2

Say = Callable[[str], None]
"""Takes one line of progress."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """part_rows: of a part at most, but for a page; part_seconds: a follower lets rows that are
    final wait so long for others."""

    part_rows: int = 50_000
    part_seconds: float = 600.0


SIZES = Sizes()


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
        sizes: Sizes = SIZES,
        say: Say | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.name, self._say, self._clock = experiment, say, clock
        self._source = Source(store, experiment)
        self._folder, self._index, self._sizes = folder, index, sizes
        self._newest, self._said = 0.0, -math.inf
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

    def _begin(self) -> None:
        """The next parts, from the cursor on; `_last`: the last row in them or left out."""
        self._drafts = Drafts(self._folder, "part")
        self._positions = array("q")
        self._last = self.cursor.row, self.cursor.id
        self._since = monotonic()

    def abandon(self) -> None:
        """Parts that are not archived; the store still has all they hold."""
        self._drafts.discard()
        self._folder.clear(self.cursor.row)
        self._begin()

    def close(self) -> None:
        self._drafts.discard()
        self._index.close()

    # -- rounds --------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Take the events that there are, then the rows that are final, a part after another."""
        if not await self._source.holds_row(self.cursor):
            await self._take_events()  # it may have been erased, of which the log tells
            if self.cursor.id is not None:
                raise self._source.another_row(self.cursor)
        await self._take_events()
        self._newest = await self._source.newest(self.cursor.row)
        while page := await self._source.rows(self._last[0], ROWS):
            # The order matters: what is not due now, of rows that were there before, has been
            # settled by an event that is there after.
            due = await self._source.oldest_due()
            if await self._take_events():
                continue  # of what was erased, the page may hold some
            if not self._take_final(page, due):
                break
            if self._drafts.full(self._sizes.part_rows):
                self.flush()

    def ripe(self) -> bool:
        """Whether rows wait that should not wait for more: a day is complete, or it is long ago."""
        if self._last[0] == self.cursor.row:
            return False
        day_end = (self._drafts.oldest // DAY_S + 1) * DAY_S if self._drafts.rows else math.inf
        complete = self._drafts.newest > day_end + MARGIN_S
        return complete or monotonic() >= self._since + self._sizes.part_seconds

    def flush(self) -> None:
        """Let what was taken be archived."""
        number, name = self._last
        if number == self.cursor.row:
            return
        placed = self._drafts.close()
        if placed:
            self.forget_open()  # they may hold the same rows, and no row may be there twice
            self._folder.put(placed)
        self._index.archived(
            self._positions, replace(self.cursor, row=number, id=name), self._drafts.newest
        )
        self._begin()

    async def write_open(self) -> None:
        """Write what is not final yet, in place of what was written so before."""
        while True:
            placed, drafts = list[tuple[Path, Path]](), Drafts(self._folder, "open")
            number = self.cursor.row
            while page := await self._source.rows(number, ROWS):
                decisions = [self._decoded(row) for row in page]
                self._join(drafts, page, decisions, final=False)
                if drafts.full(self._sizes.part_rows):
                    placed += drafts.close()
                    drafts = Drafts(self._folder, "open")
                number = page[-1].number
                self._tell("rows up to", number)
            placed += drafts.close()
            if not await self._take_events():
                break
            self._folder.remove_all([draft for draft, _ in placed])  # of what was erased meanwhile
        self.forget_open()
        self._folder.put(placed)

    def forget_open(self) -> None:
        """Remove what an earlier run wrote that was not final: it will be, and then be there."""
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
        self._tell("rows up to", self._last[0])
        return len(decisions) == len(page)

    def _join(
        self,
        drafts: Drafts,
        page: Sequence[KeptRow],
        decisions: Sequence[Decision | None],
        *,
        final: bool,
    ) -> list[int]:
        """Add rows with what came of them; the positions of the events that said so."""
        found = self._index.find([decision.id for decision in decisions if decision])
        drafts.add(
            Row(row.number, decision, found.get(decision.id, NOTHING), final)
            for row, decision in zip(page, decisions, strict=False)
            if decision
        )
        return [position for each in found.values() for position in each.positions]

    def _decoded(self, row: KeptRow) -> Decision | None:
        """None: it is left out, damaged, erased, or made before the archive begins."""
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

    @property
    def unreadable(self) -> int:
        """Rows that were left out since they are damaged."""
        return len(self._damaged)

    # -- events --------------------------------------------------------------------------------

    async def _take_events(self) -> bool:
        """Take events up to the log's end; whether something was erased by them."""
        erased, skips = False, await self._source.skips()
        while records := await self._source.unread(self.cursor):
            cursor, changes, gone = self.cursor, list[tuple[int, Change]](), set[str]()
            begins, time = cursor.begins, cursor.time
            for record in records:
                event = self._event(record, skips)
                time = max(time, event.at)
                if isinstance(event, Learned):
                    changes.append((record.position, change_of(event)))
                elif isinstance(event, Erased):
                    gone.update(event.decisions)
            if cursor.position == 0 and records[0].position > 1:
                begins = self._begin_late(records[0], skips)
            if gone:
                erased = True
                self.abandon()
                self._folder.erase(gone)
                self._index.erase(gone)
            last = records[-1]
            self._index.take(
                changes,
                replace(
                    self.cursor,
                    position=last.position,
                    digest=digest(last.payload),
                    time=time,
                    begins=begins,
                ),
            )
            self._tell("events up to", last.position)
        return erased

    def _event(self, record: Record, skips: frozenset[int]) -> AnyEvent:
        try:
            return read_event(record, skips)
        except Damaged as fault:
            raise Damaged(f"experiment {self.name}, position {record.position}: {fault}") from fault

    def _begin_late(self, first: Record, skips: frozenset[int]) -> float:
        """Where events were trimmed before the archive began: decisions before this lack some."""
        begins = read_event(first, skips).at + MARGIN_S
        logger.warning(
            "experiment %s: the log begins at position %d: decisions made before unix time %.0f "
            "are left out, for what came of them was trimmed",
            self.name,
            first.position,
            begins,
        )
        return begins

    def _tell(self, doing: str, done: int) -> None:
        if self._say and monotonic() > self._said + SAY_SECONDS:
            self._say(f"{self.name}: {doing} {done:,}")
            self._said = monotonic()
