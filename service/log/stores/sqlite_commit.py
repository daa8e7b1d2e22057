"""A commit of the embedded store: one transaction, decided entry by entry, written by tables."""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence

from service.log.stores import sqlite_file
from service.log.stores.base import (
    Activation,
    Append,
    Appended,
    CommitResult,
    DecisionRow,
    Entry,
    Kept,
    Known,
    Mark,
)
from service.log.stores.sqlite_rows import ROWS, run, select
from service.log.stores.sqlite_tables import head

Identity = tuple[str, str]
"""Of a mark or a decision: the experiment, and its own name."""


def _marks(db: sqlite3.Connection, identities: Sequence[Identity]) -> dict[Identity, Mark]:
    rows = select(
        db,
        "SELECT experiment, identity, value, position FROM (VALUES {}) CROSS JOIN marks "
        "ON experiment = column1 AND identity = column2",
        identities,
    )
    return {(experiment, identity): Mark(*mark) for experiment, identity, *mark in rows}


def commit(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[CommitResult]:
    try:
        with sqlite_file.transaction(db):
            return _write(db, entries, {})
    except _SomeAreKept:
        with sqlite_file.transaction(db):
            return _write(db, entries, _kept(db, entries))


def _write(
    db: sqlite3.Connection, entries: Sequence[Entry], kept: Mapping[Identity, bytes]
) -> list[CommitResult]:
    if not entries:
        db.execute(f"PRAGMA user_version = {sqlite_file.LAYOUT}")  # a write, of what is there
    marks: list[Identity] = []
    for entry in entries:
        if isinstance(entry, Append):
            marks += [(entry.experiment, identity) for identity in entry.marks]
        elif isinstance(entry, Activation):
            marks.append((entry.experiment, entry.mark))
    batch = _Batch(db, _marks(db, marks), kept)
    outcomes = [batch.take(entry) for entry in entries]
    batch.write()
    return outcomes


def _kept(db: sqlite3.Connection, entries: Sequence[Entry]) -> dict[Identity, bytes]:
    """Payloads of those decisions that are in the log already."""
    rows = select(
        db,
        "SELECT experiment, id, payload FROM (VALUES {}) CROSS JOIN decisions "
        "ON experiment = column1 AND id = column2",
        [(entry.experiment, entry.id) for entry in entries if isinstance(entry, DecisionRow)],
    )
    return {(experiment, id_): payload for experiment, id_, payload in rows}


class _SomeAreKept(Exception):
    """Decisions of a batch are in the log already: which ones has to be looked up first."""


class _Batch:
    """What one transaction adds: decided entry by entry, written table by table.

    marks   those of the entries' identities that are known; here, those of this batch too
    kept    payloads of the decisions that the log has, and of this batch's
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        marks: dict[Identity, Mark],
        kept: Mapping[Identity, bytes],
    ) -> None:
        self._db, self._known, self._kept = db, marks, dict(kept)
        self._heads: dict[str, int] = {}
        self._decisions: list[tuple[str, str, bytes]] = []
        self._events: list[tuple[str, int, bytes]] = []
        self._marks: list[tuple[str, str, str, int, float | None]] = []
        self._settled: list[Identity] = []
        self._due: list[tuple[str, str, float]] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def take(self, entry: Entry) -> CommitResult:
        if isinstance(entry, Append):
            return self.append(entry)
        return self.keep(entry) if isinstance(entry, DecisionRow) else self.activate(entry)

    def activate(self, entry: Activation) -> CommitResult:
        key = entry.experiment, entry.mark
        known = self._known.get(key)
        if known:
            return Known({entry.mark: known})
        self._known[key] = Mark("", 0)
        self._marks.append((*key, "", 0, entry.keep_until))
        if entry.due is not None:
            self._due.append((entry.experiment, entry.decision, entry.due))
        return Kept()

    def append(self, entry: Append) -> CommitResult:
        experiment, marks = entry.experiment, self._known
        known = {
            identity: marks[experiment, identity]
            for identity in entry.marks
            if (experiment, identity) in marks
        }
        if len(known) == len(entry.marks) and entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        if known:
            return Known(known)
        if experiment not in self._heads:
            self._heads[experiment] = head(self._db, experiment)
        self._heads[experiment] += 1
        position = self._heads[experiment]
        self._events.append((experiment, position, entry.payload))
        for identity, value in entry.marks.items():
            marks[experiment, identity] = Mark(value, position)
            self._marks.append((experiment, identity, value, position, entry.keep_until))
        if entry.settles is not None:
            self._settled.append((experiment, entry.settles))
        return Appended(position)

    def keep(self, row: DecisionRow) -> CommitResult:
        key = row.experiment, row.id
        if key in self._kept:
            return Kept(self._kept[key])
        self._kept[key] = row.payload
        self._decisions.append((*key, row.payload))
        self._counts[row.experiment, row.policy] += 1
        if row.due is not None:
            self._due.append((*key, row.due))
        return Kept()

    def write(self) -> None:
        """Raises _SomeAreKept."""
        db = self._db
        before = db.total_changes
        run(
            db,
            "INSERT OR IGNORE INTO decisions (experiment, id, payload) VALUES {}",
            self._decisions,
        )
        if db.total_changes - before < len(self._decisions):
            raise _SomeAreKept
        run(db, "INSERT INTO events VALUES {}", self._events)
        run(db, "INSERT INTO marks VALUES {}", self._marks)
        run(db, "INSERT OR REPLACE INTO experiments VALUES {}", [*self._heads.items()])
        run(db, "INSERT OR IGNORE INTO due VALUES {}", self._due)
        self._settle()
        run(
            db,
            "INSERT INTO decision_counts VALUES {} ON CONFLICT (experiment, policy) "
            "DO UPDATE SET decisions = decisions + excluded.decisions",
            [(*key, count) for key, count in self._counts.items()],
        )

    def _settle(self) -> None:
        """What is settled is not due; nor will it be, where its row comes later."""
        by_experiment: dict[str, list[str]] = {}
        for experiment, decision in dict.fromkeys(self._settled):
            by_experiment.setdefault(experiment, []).append(decision)
        for experiment, decisions in by_experiment.items():
            for start in range(0, len(decisions), ROWS):
                self._settle_some(experiment, decisions[start : start + ROWS])

    def _settle_some(self, experiment: str, decisions: list[str]) -> None:
        places = ", ".join("?" * len(decisions))
        were_due = self._db.execute(
            # +due: else it would be looked through by time
            f"DELETE FROM due WHERE experiment = ? AND +due IS NOT NULL "  # noqa: S608
            f"AND decision IN ({places})",
            [experiment, *decisions],
        ).rowcount
        if were_due < len(decisions):
            run(
                self._db,
                "INSERT OR IGNORE INTO due SELECT column1, column2, NULL FROM (VALUES {}) WHERE "
                "NOT EXISTS (SELECT 1 FROM decisions WHERE experiment = column1 AND id = column2)",
                [(experiment, decision) for decision in decisions],
            )
