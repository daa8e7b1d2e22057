"""The entries of a commit, decided one after the other: a store then has only rows to write."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from service.log.stores.base import (
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Mark,
    MarkConflict,
    RowStored,
    digest,
)

EntryName = tuple[str, str]
"""Name of a mark or a decision: the experiment, and its own name."""


class Transaction:
    """The rows of one transaction.

    heads     position and digest of the last event, by experiment: also of this batch
    numbers   of new decision rows, by experiment
    known     marks of the log and of this batch; kept: payloads of decisions likewise
    """

    def __init__(
        self,
        heads: dict[str, tuple[int, str]],
        numbers: Mapping[str, Iterator[int]],
        known: dict[EntryName, Mark],
        kept: dict[EntryName, bytes],
    ) -> None:
        self.heads, self.numbers, self._known, self._kept = heads, numbers, known, kept
        self.events: list[tuple[str, int, bytes]] = []
        self.marks: dict[EntryName, tuple[str, int, float | None]] = {}
        self.rows: list[tuple[str, int, str, bytes]] = []
        self.due: dict[EntryName, float] = {}
        self.settled: dict[EntryName, None] = {}
        self.counts: Counter[EntryName] = Counter()

    def decide(self, entries: Sequence[Entry]) -> list[CommitResult]:
        return [self._append(e) if isinstance(e, Append) else self._keep(e) for e in entries]

    def _append(self, entry: Append) -> CommitResult:
        name = entry.experiment
        known = {i: self._known[name, i] for i in entry.marks if (name, i) in self._known}
        refused = {identity: mark.value for identity, mark in known.items()} != entry.replaces
        if not refused or len(known) == len(entry.marks):
            self.settled |= dict.fromkeys((name, decision) for decision in entry.settles)
        if refused:
            return MarkConflict(known)
        position, before = self.heads[name]
        position += 1
        self.heads[name] = position, digest(entry.payload)
        self.events.append((name, position, entry.payload))
        for identity, value in entry.marks.items():
            self._known[name, identity] = Mark(value, position)
            self.marks[name, identity] = value, position, entry.keep_until
        if entry.opens is not None:
            decision, due = entry.opens
            self.due[name, decision] = due
        return Appended(position, before)

    def _keep(self, row: DecisionRow) -> CommitResult:
        name = row.experiment, row.id
        if name in self._kept:
            return RowStored(0, self._kept[name])
        self._kept[name] = row.payload
        number = next(self.numbers[row.experiment])
        self.rows.append((row.experiment, number, row.id, row.payload))
        self.counts[row.experiment, row.series] += 1
        if row.due is not None:
            self.due[name] = row.due
        return RowStored(number)
