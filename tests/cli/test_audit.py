"""forage audit: beside a service and after it, and what it says of a database that was changed."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from service.offline.audit_report import TABLE_COLUMNS
from service.state.decisions import decode_decision, encode_decision
from tests.cli.forage import forage, serving, started

pytestmark = pytest.mark.process

COUNTS = "underived earlier orphaned losses unlogged trimmed erased tombstones imported"
POLICIES = ["linucb", "lints", "neural_linear_ts", "random"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a service that was stopped once; it was audited while it served."""
    folder = tmp_path_factory.mktemp("played")
    with serving(folder) as running:
        for policy in POLICIES * 3:
            running.visit(policy)
        assert running.stop() == 0
    with serving(folder) as running:
        for number, policy in enumerate(POLICIES * 3):
            running.visit(policy, reward=float(number % 2))
        beside = started("audit", folder=folder)
        assert (beside.returncode, beside.stderr) == (0, "")
        running.visit()
        assert running.stop() == 0
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    for path in played.glob("forage.db*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def last_row(db: sqlite3.Connection) -> tuple[str, bytes]:
    query = "SELECT id, payload FROM decisions ORDER BY number DESC LIMIT 1"
    found: tuple[str, bytes] = db.execute(query).fetchone()
    return found


def test_a_log_as_it_was_written_ends_with_0_and_a_table(folder: Path) -> None:
    ended = forage("audit", "--json", "found.json", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    head, line = ended.stdout.splitlines()
    assert head.split() == ["experiment", "decisions", "events", *TABLE_COLUMNS]
    assert line.split() == ["zooplus", "25", "26", *["0"] * len(TABLE_COLUMNS)]
    assert json.loads((folder / "found.json").read_text()) == [
        {
            "experiment": "zooplus",
            "clean": True,
            "decisions": 25,
            "events": 26,
            **dict.fromkeys(TABLE_COLUMNS, 0),
            **dict.fromkeys(COUNTS.split(), 0),
            "fallback": [],
            "findings": [],
        }
    ]


def test_several_processes_report_what_one_does(folder: Path, db: sqlite3.Connection) -> None:
    """Of a log with a fault in each of its parts: a row that is gone, an event that is gone."""
    [*_, (first,)] = db.execute("SELECT id FROM decisions ORDER BY number LIMIT 14").fetchall()
    db.execute("DELETE FROM decisions WHERE id = ?", (first,))
    db.execute("DELETE FROM events WHERE position = 24")
    said = []
    for count in (1, 2, 3):
        command = ("audit", "--parallel", str(count), "--json", f"{count}.json")
        ended = started(*command, folder=folder)
        assert (ended.returncode, ended.stderr) == (1, "")
        said.append((ended.stdout, (folder / f"{count}.json").read_text()))
    assert said[0] == said[1] == said[2]
    assert len(json.loads(said[0][1])[0]["findings"]) > 1


def test_a_flipped_bit_of_the_file_is_found_and_the_row_is_named(
    folder: Path, db: sqlite3.Connection
) -> None:
    name, payload = last_row(db)
    db.close()
    path = folder / "forage.db"
    content = bytearray(path.read_bytes())
    begin = payload[:60]  # checksum, unit and id
    assert content.count(begin) == 1
    content[content.index(begin) + len(begin) - 1] ^= 1
    path.write_bytes(content)
    ended = forage("audit", "--json", "found.json", folder=folder)
    assert ended.returncode == 1
    assert f"unreadable    {name}  a decision row was changed" in ended.stdout
    [told] = json.loads((folder / "found.json").read_text())
    assert (told["clean"], told["unreadable"]) == (False, 1)
    assert [each["id"] for each in told["findings"]] == [name]


def test_a_row_that_was_written_anew_is_found_by_deriving_it(
    folder: Path, db: sqlite3.Connection
) -> None:
    """Its checksum holds, and its numbers no longer follow from the seed."""
    name, payload = last_row(db)
    decision = decode_decision(payload)
    changed = encode_decision(msgspec.structs.replace(decision, slate_log=decision.slate_log - 0.5))
    db.execute("UPDATE decisions SET payload = ? WHERE id = ?", (changed, name))
    ended = forage("audit", folder=folder)
    assert ended.returncode == 1
    assert f"choice        {name}  logarithm of the propensity of" in ended.stdout


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM decisions WHERE id = ?1", "missing       {}  its row is missing; the event "
         "at position 26 settles it"),
        ("DELETE FROM events WHERE position = 20 AND ?1 != ''", "log           position 20  the "
         "log goes on at position 21"),
    ],
)  # fmt: skip
def test_what_is_gone_is_named(
    folder: Path, db: sqlite3.Connection, damage: str, said: str
) -> None:
    name, _ = last_row(db)
    db.execute(damage, (name,))
    ended = forage("audit", folder=folder)
    assert ended.returncode == 1
    assert said.format(name) in ended.stdout


def test_one_experiment_is_audited_alone(folder: Path, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO experiments VALUES ('zoo', 1, '')")
    db.execute("INSERT INTO events VALUES ('zoo', 1, x'00')")
    assert forage("audit", folder=folder).returncode == 1
    alone = forage("audit", "--experiment", "zooplus", folder=folder)
    assert alone.returncode == 0
    assert "zoo " not in alone.stdout


def test_a_damaged_page_that_the_audit_does_not_read_is_found(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "forage.db")) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'due_by_time'"
        (page,) = db.execute(query).fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert "damaged" not in forage("audit", folder=folder).stdout
    with (folder / "forage.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    ended = forage("audit", folder=folder)
    assert ended.returncode == 1
    assert "the store is damaged: " in ended.stdout
