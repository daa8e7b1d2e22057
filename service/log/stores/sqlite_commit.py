"""A commit of the embedded store: one transaction, written by tables."""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import count

from service.log.stores.base import Append, CommitResult, DecisionRow, Entry
from service.log.stores.batch import EntryName, Transaction
from service.log.stores.sqlite_file import SQLITE_LAYOUT, transaction
from service.log.stores.sqlite_tables import ROWS_PER_STATEMENT, head, last_number, look_up, run

SQLITE_SETTLED_EARLY = (
    "INSERT OR IGNORE INTO due SELECT column1, column2, NULL FROM (VALUES {}) WHERE "
    "NOT EXISTS (SELECT 1 FROM decisions WHERE experiment = column1 AND id = column2)"
)


def commit(db: sqlite3.Connection, entries: Sequence[Entry]) -> list[CommitResult]:
    events = [entry for entry in entries if isinstance(entry, Append)]
    rows = [(entry.experiment, entry.id) for entry in entries if isinstance(entry, DecisionRow)]
    with transaction(db):
        if not entries:
            db.execute(f"PRAGMA user_version = {SQLITE_LAYOUT}")  # a write, of what is there
        marks = [(entry.experiment, identity) for entry in events for identity in entry.marks]
        last = last_number(db) if rows else 0
        batch = Transaction(
            {name: head(db, name) for name in {entry.experiment for entry in events}},
            dict.fromkeys((name for name, _ in rows), count(last + 1)),
            look_up(db, "marks", marks),
            look_up(db, "decisions", rows),
        )
        results = batch.decide(entries)
        _write(db, batch)
    return results


def _write(db: sqlite3.Connection, batch: Transaction) -> None:
    # OR FAIL: the transaction undoes a failed statement. Undoing it alone would take a journal of
    # each statement, and with it a commit of 16 rows a quarter longer.
    run(db, "INSERT OR FAIL INTO decisions (experiment, number, id, payload) VALUES {}", batch.rows)
    run(db, "INSERT OR FAIL INTO events VALUES {}", batch.events)
    marks = [(*name, *values) for name, values in batch.marks.items()]
    run(db, "INSERT OR REPLACE INTO marks VALUES {}", marks)
    moved = {name for name, *_ in batch.events}
    heads = [(name, *batch.heads[name]) for name in moved]
    run(db, "INSERT OR REPLACE INTO experiments VALUES {}", heads)
    due = [(*name, seconds) for name, seconds in batch.due.items()]
    run(db, "INSERT OR IGNORE INTO due VALUES {}", due)
    _settle(db, batch.settled)
    run(
        db,
        "INSERT INTO decision_counts VALUES {} ON CONFLICT (experiment, series) "
        "DO UPDATE SET decisions = decisions + excluded.decisions",
        [(*name, rows) for name, rows in batch.counts.items()],
    )


def _settle(db: sqlite3.Connection, names: Iterable[EntryName]) -> None:
    """Take settled decisions off the due ones; they stay off where their rows come later."""
    by_experiment: dict[str, list[str]] = {}
    for experiment, decision in names:
        by_experiment.setdefault(experiment, []).append(decision)
    for experiment, settled in by_experiment.items():
        for start in range(0, len(settled), ROWS_PER_STATEMENT):
            decisions = settled[start : start + ROWS_PER_STATEMENT]
            were_due = db.execute(
                # +due: else it would be looked through by time
                f"DELETE FROM due WHERE experiment = ? AND +due IS NOT NULL "  # noqa: S608
                f"AND decision IN ({', '.join('?' * len(decisions))})",
                [experiment, *decisions],
            ).rowcount
            if were_due < len(decisions):
                run(db, SQLITE_SETTLED_EARLY, [(experiment, one) for one in decisions])
