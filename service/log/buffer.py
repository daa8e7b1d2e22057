"""Buffer: decisions that are answered before the log has them."""

import asyncio
from collections import deque
from collections.abc import Collection
from itertools import islice

import msgspec

from service.log.stores.base import CommitResult, DecisionRow, Entry
from service.observability.telemetry import Telemetry
from service.state.events import AnyEvent


class StoredDecision(msgspec.Struct, frozen=True):
    """The decision under an id. logged: in the log; else it waits in memory or is lost."""

    payload: bytes
    logged: bool


LogAnswer = asyncio.Future[CommitResult | StoredDecision]


class Pending:
    """An entry on its way into the log, and the answer to the request that waits for it.

    optional   a decision that may be answered before it is in the log
    deadline   for that, by the loop's clock
    """

    __slots__ = ("answer", "deadline", "entry", "event", "optional")

    def __init__(
        self,
        entry: Entry,
        event: AnyEvent | None,
        optional: DecisionRow | None,
        answer: LogAnswer | None,
    ) -> None:
        self.entry, self.event, self.optional = entry, event, optional
        self.answer: LogAnswer = answer or asyncio.get_running_loop().create_future()
        self.deadline = 0.0


class Buffer:
    """At most `limit` rows in memory, oldest first, each id once.

    slow   a decision has waited in vain for the commit under way
    """

    def __init__(self, limit: int, patience_seconds: float, telemetry: Telemetry) -> None:
        self._limit, self._patience_seconds = limit, patience_seconds
        self._telemetry = telemetry
        self._rows: dict[tuple[str, str], DecisionRow] = {}
        self._deadlines: deque[Pending] = deque()  # the earliest first
        self._timer: asyncio.TimerHandle | None = None
        self.slow = False

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

    # -- deadlines -----------------------------------------------------------------------------

    def set_deadline(self, pending: Pending) -> None:
        """Answer without the log after a while. One timer for all: the oldest comes first."""
        loop = asyncio.get_running_loop()
        pending.deadline = loop.time() + self._patience_seconds
        self._deadlines.append(pending)
        if self._timer is None:
            self._timer = loop.call_at(pending.deadline, self._answer_overdue)

    def _answer_overdue(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        self.drop_answered()
        while self._deadlines and self._deadlines[0].deadline <= loop.time():
            pending = self._deadlines.popleft()
            if pending.optional is not None and not pending.answer.done():
                self.slow = True
                pending.answer.set_result(self.answer(pending.optional, may_be_logged=True))
        if self._deadlines:
            self._timer = loop.call_at(self._deadlines[0].deadline, self._answer_overdue)

    def drop_answered(self) -> None:
        while self._deadlines and self._deadlines[0].answer.done():
            self._deadlines.popleft()
