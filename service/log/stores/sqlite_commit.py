"""A commit of the embedded store: one transaction, decided entry by entry, written by tables."""

import sqlite3
from collections import Counter
from collections.abc import Sequence

from service.log.stores.base import (
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Kept,
    Known,
    Mark,
    digest,
)
from service.log.stores.sqlite_file import LAYOUT, transaction
from service.log.stores.sqlite_tables import ROWS, head, last_number, look_up, run

Identity = tuple[str, str]
"""Of a mark or a decision: the experiment, and its own name."""

SETTLED_EARLY = (
    "INSERT OR IGNORE INTO due SELECT column1, column2, NULL FROM (VALUES {}) WHERE "
    "NOT EXISTS (SELECT 1 FROM decisions WHERE experiment = column1 AND id = column2)"
)


class _SomeAreKept(Exception):
    """Decisions of a batch are in the log already: they have to be looked up first."""


def commit(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[CommitResult]:
    try:
        with transaction(db):
            return _write(db, entries, {})
    except _SomeAreKept:
        with transaction(db):
            rows = [(one.experiment, one.id) for one in entries if isinstance(one, DecisionRow)]
            return _write(db, entries, look_up(db, "decisions", rows))


def _write(
    db: sqlite3.Connection, entries: Sequence[Entry], kept: dict[Identity, bytes]
) -> list[CommitResult]:
    if not entries:
        db.execute(f"PRAGMA user_version = {LAYOUT}")  # a write, of what is there
    marks: list[Identity] = []
    for entry in entries:
        if isinstance(entry, Append):
            marks += [(entry.experiment, identity) for identity in entry.marks]
    batch = _Batch(db, look_up(db, "marks", marks), kept)
    results = [batch.take(entry) for entry in entries]
    batch.write()
    return results


class _Batch:
    """The rows of one transaction: decided entry by entry, written table by table.

    known   marks of the log and, as they come, of this batch
    kept    payloads of decisions likewise
    """

    def __init__(
        self, db: sqlite3.Connection, known: dict[Identity, Mark], kept: dict[Identity, bytes]
    ) -> None:
        self._db, self._known, self._kept = db, known, kept
        self._heads: dict[str, tuple[int, str]] = {}  # position and digest
        self._number = 0  # of the last row; 0: not looked up yet
        self._decisions: list[tuple[int, str, str, bytes]] = []
        self._events: list[tuple[str, int, bytes]] = []
        self._marks: list[tuple[str, str, str, int, float | None]] = []
        self._settled: list[Identity] = []
        self._due: list[tuple[str, str, float]] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def take(self, entry: Entry) -> CommitResult:
        return self.append(entry) if isinstance(entry, Append) else self.keep(entry)

    def append(self, entry: Append) -> CommitResult:
        experiment, marks = entry.experiment, self._known
        known = {
            identity: marks[experiment, identity]
            for identity in entry.marks
            if (experiment, identity) in marks
        }
        if len(known) == len(entry.marks) and entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        if {identity: mark.value for identity, mark in known.items()} != entry.replaces:
            return Known(known)
        if experiment not in self._heads:
            self._heads[experiment] = head(self._db, experiment)
        position, before = self._heads[experiment]
        position += 1
        self._heads[experiment] = position, digest(entry.payload)
        self._events.append((experiment, position, entry.payload))
        for identity, value in entry.marks.items():
            marks[experiment, identity] = Mark(value, position)
            self._marks.append((experiment, identity, value, position, entry.keep_until))
        if entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        if entry.opens is not None:
            self._due.append((experiment, *entry.opens))
        return Appended(position, before)

    def keep(self, row: DecisionRow) -> CommitResult:
        key = row.experiment, row.id
        if key in self._kept:
            return Kept(0, self._kept[key])
        self._kept[key] = row.payload
        self._number = (self._number or last_number(self._db)) + 1
        self._decisions.append((self._number, *key, row.payload))
        self._counts[row.experiment, row.policy] += 1
        if row.due is not None:
            self._due.append((*key, row.due))
        return Kept(self._number)

    def write(self) -> None:
        """Raises _SomeAreKept."""
        db = self._db
        before = db.total_changes
        query = "INSERT OR IGNORE INTO decisions (number, experiment, id, payload) VALUES {}"
        run(db, query, self._decisions)
        if db.total_changes - before < len(self._decisions):
            raise _SomeAreKept
        run(db, "INSERT INTO events VALUES {}", self._events)
        run(db, "INSERT OR REPLACE INTO marks VALUES {}", self._marks)
        heads = [(name, *head) for name, head in self._heads.items()]
        run(db, "INSERT OR REPLACE INTO experiments VALUES {}", heads)
        run(db, "INSERT OR IGNORE INTO due VALUES {}", self._due)
        self._settle()
        run(
            db,
            "INSERT INTO decision_counts VALUES {} ON CONFLICT (experiment, policy) "
            "DO UPDATE SET decisions = decisions + excluded.decisions",
            [(*key, count) for key, count in self._counts.items()],
        )

    def _settle(self) -> None:
        """A settled decision is not due; nor will it be where its row comes later."""
        by_experiment: dict[str, list[str]] = {}
        for experiment, decision in dict.fromkeys(self._settled):
            by_experiment.setdefault(experiment, []).append(decision)
        for experiment, settled in by_experiment.items():
            for start in range(0, len(settled), ROWS):
                decisions = settled[start : start + ROWS]
                were_due = self._db.execute(
                    # +due: else it would be looked through by time
                    f"DELETE FROM due WHERE experiment = ? AND +due IS NOT NULL "  # noqa: S608
                    f"AND decision IN ({', '.join('?' * len(decisions))})",
                    [experiment, *decisions],
                ).rowcount
                if were_due < len(decisions):
                    run(self._db, SETTLED_EARLY, [(experiment, one) for one in decisions])
