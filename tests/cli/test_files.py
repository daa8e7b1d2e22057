"""Files that hold what was logged are their owner's alone, whatever the umask says."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.security.files import create_private, keep_private, make_private
from tests.cli.forage import expect_refusal, forage, serving


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """One that lets everybody read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path, pattern: str = "*") -> dict[str, int]:
    """Of all files below a folder, by their names in it."""
    return {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob(pattern)
        if path.is_file()
    }


@pytest.mark.process
def test_whatever_a_store_is_kept_in_or_copied_to_is_private(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.visit()
        found = modes(tmp_path, "forage.db*")
        assert {"forage.db", "forage.db-wal", "forage.db-shm"} < found.keys()
        assert "forage.db.lock" in found
        assert set(found.values()) == {0o600}, found
        assert forage("backup", "--to", "backup.db", folder=tmp_path).returncode == 0
        assert forage("export", "--to", "archive", folder=tmp_path).returncode == 0
    restored = forage(
        "restore", "--from", "backup.db", "--store", "sqlite:///restored.db", folder=tmp_path
    )
    assert restored.returncode == 0
    found = {**modes(tmp_path, "backup.db*"), **modes(tmp_path, "restored.db*")}
    found |= modes(tmp_path / "archive")
    assert len([name for name in found if name.endswith(".parquet")]) == 2
    assert {"backup.db", "restored.db"} < found.keys()
    assert set(found.values()) == {0o600}, found


@pytest.mark.process
def test_files_that_others_could_read_are_tightened_at_the_start(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.visit()
    for path in tmp_path.glob("forage.db*"):
        path.chmod(0o644)
    loose = modes(tmp_path, "forage.db*")
    assert "forage.db-wal" in loose  # the service was killed
    with serving(tmp_path) as running:
        running.visit()
        found = modes(tmp_path, "forage.db*")
        assert {found[name] for name in loose} == {0o600}
        assert "forage.db had mode 0644: others may no longer read it" in running.said
    assert "had mode" not in _said_by_the_next_start(tmp_path)


def _said_by_the_next_start(folder: Path) -> str:
    with serving(folder) as running:
        return running.said


def test_the_database_of_another_program_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "forage.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (a)")
    path.chmod(0o644)
    line = expect_refusal(forage("serve", "--port", "0", folder=tmp_path))
    assert "another program" in line
    assert modes(tmp_path)["forage.db"] == 0o644


def test_a_file_is_created_private_and_one_that_is_there_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    create_private(path)
    assert modes(tmp_path) == {"file": 0o600}
    path.write_text("content")
    path.chmod(0o664)
    create_private(path)
    assert modes(tmp_path) == {"file": 0o664}
    make_private(path)
    assert modes(tmp_path) == {"file": 0o600}
    assert path.read_text() == "content"


def test_a_folder_and_a_file_that_is_not_there_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o755)
    keep_private(folder)
    keep_private(tmp_path / "none")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_the_file_of_another_owner_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    keep_private(path)
    assert modes(tmp_path) == {"file": 0o644}
    assert "another owner: others may read it" in caplog.text
