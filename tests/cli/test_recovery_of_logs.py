"""A database that is damaged, or written by another version of Forage."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.log.stores.sqlite_file import SQLITE_LAYOUT
from service.state.events import SCHEMA
from tests.cli.forage import expect_refusal, forage, serving

pytestmark = pytest.mark.process

EVENTS = {"FORAGE_SNAPSHOT_EVERY_EVENTS": "4"}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a database of ten rewards and two snapshots, and the policy as it was."""
    folder = tmp_path_factory.mktemp("taught")
    with serving(folder, **EVENTS) as running:
        for number in range(10):
            running.visit(reward=number % 2)
        policy = running.get("/policies/linucb")
        assert running.stop() == 0
    return folder, policy


@pytest.fixture
def folder(taught: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    for path in taught[0].glob("forage.db*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def damage(db: sqlite3.Connection, count: int) -> None:
    """Flip a byte in the middle of the newest snapshots."""
    rows = db.execute("SELECT position, payload FROM snapshots ORDER BY position DESC").fetchall()
    assert len(rows) == 2
    for position, payload in rows[:count]:
        middle = len(payload) // 2
        changed = payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]
        db.execute("UPDATE snapshots SET payload = ? WHERE position = ?", (changed, position))


def newest(db: sqlite3.Connection) -> int:
    [position] = db.execute("SELECT max(position) FROM events").fetchone()
    assert isinstance(position, int)
    return position


@pytest.mark.parametrize("count", [1, 2])
def test_past_a_damaged_snapshot_the_state_is_the_same_and_it_is_said(
    taught: tuple[Path, Any], folder: Path, db: sqlite3.Connection, count: int
) -> None:
    """One damaged: the older one and its tail. Both: the whole log."""
    damage(db, count)
    with serving(folder) as running:
        assert running.said.count("is damaged") == count
        assert f"snapshot at position {newest(db)} is damaged" in running.said
        assert running.metric("forage_damaged_snapshots_total") == count
        told = running.get("/policies/linucb")
        for since_the_start in ("propensity_mean", "propensity_minimum", "entropy_mean"):
            del told[since_the_start]
        assert told.items() <= taught[1].items()


def append(db: sqlite3.Connection, payload: bytes) -> None:
    position = newest(db) + 1
    db.execute("INSERT INTO events VALUES ('zooplus', ?, ?)", (position, payload))
    db.execute("UPDATE experiments SET position = ? WHERE name = 'zooplus'", (position,))


def test_a_log_with_records_of_another_schema_is_refused(
    folder: Path, db: sqlite3.Connection
) -> None:
    record = {"schema": 99, "event": {"type": "Invented", "at": 0.0}}
    append(db, json.dumps(record).encode())
    line = expect_refusal(forage("serve", "--port", "0", folder=folder))
    assert f"schema 99, and this Forage reads schema {SCHEMA}" in line


def test_a_database_of_another_layout_is_refused(folder: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA user_version = 99")
    line = expect_refusal(forage("serve", "--port", "0", folder=folder))
    assert f"layout 99, and this Forage reads layout {SQLITE_LAYOUT}" in line


def test_a_record_that_cannot_be_read_stops_its_experiment_alone(
    folder: Path, db: sqlite3.Connection
) -> None:
    append(db, b'{"schema":%d,"event":{"type":"Rewarded"}}' % SCHEMA)
    with serving(folder) as running:
        assert running.get("/healthz")["quarantined"] == 1
        assert "cannot be read" in running.said


def test_a_gap_in_the_log_stops_its_experiment_alone(folder: Path, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM snapshots")
    db.execute("DELETE FROM events WHERE position = 3")
    with serving(folder) as running:
        assert running.get("/healthz")["quarantined"] == 1
        assert "position 4 follows 2" in running.said


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "forage.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (id INTEGER)")
    path.chmod(0o644)
    before = path.read_bytes()
    line = expect_refusal(forage("serve", "--port", "0", folder=tmp_path))
    assert "another program" in line
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o644
