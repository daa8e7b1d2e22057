"""Files that hold what was logged are their owner's alone, whatever the umask says."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.security.files import keep_private
from tests.cli.forage import forage, serving


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


def test_the_file_of_another_owner_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    keep_private(path)
    assert modes(tmp_path) == {"file": 0o644}
    assert "another owner: others may read it" in caplog.text
