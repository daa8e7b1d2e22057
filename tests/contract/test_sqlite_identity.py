"""The embedded store knows its own files and its secret: others are refused, not served."""

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.errors import StoreReplaced
from service.log.stores import Store, open_store, sqlite_file
from service.offline.backup import backup
from tests.support.service import serving
from tests.support.stores import event, over_sqlite, stores_at

Change = Callable[[Path], None]


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def delete_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def replace(path: Path) -> None:
    """As an editor or `mv` of a copy does."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def overwrite(path: Path) -> None:
    """As `cp` of a backup does."""
    backup(url(path), path.with_name("backup.db"))
    path.write_bytes(path.with_name("backup.db").read_bytes())


def truncate_wal(path: Path) -> None:
    wal(path).write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (delete_all, "was deleted or moved"),
        (lambda path: path.rename(path.with_name("moved.db")), "was deleted or moved"),
        (lambda path: wal(path).unlink(), "wal was deleted or moved"),
        (replace, "was replaced by another file"),
        (overwrite, "was overwritten"),
        (truncate_wal, "was truncated"),
    ],
)
@over_sqlite
async def test_nothing_is_acknowledged_into_files_that_are_others_now(
    store: Store, path: Path, change: Change, said: str
) -> None:
    await store.secret()
    await store.commit([event("a")])
    await asyncio.to_thread(change, path)
    for entries in ([event("b")], [event("c")], []):
        with pytest.raises(StoreReplaced, match=said):
            await store.commit(entries)


def test_an_older_copy_written_over_the_file_is_noticed(path: Path) -> None:
    """The header's change counter runs back."""

    async def fill(store: Store) -> None:
        await store.commit([event(f"{n}", bytes(9_000)) for n in range(5)])

    stores_at(url(path)).run(fill)
    older = path.read_bytes()

    async def scenario(store: Store) -> None:
        await store.commit([event(f"more {n}", bytes(9_000)) for n in range(5)])
        await store.scrub()  # all is written back
        await store.commit([event("a")])
        await asyncio.to_thread(path.write_bytes, older)
        with pytest.raises(StoreReplaced, match="was overwritten"):
            await store.commit([event("b")])

    stores_at(url(path)).run(scenario)


def test_what_the_process_still_holds_can_be_copied(path: Path, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await store.secret()
        await store.commit([event("a", b"1"), event("b", b"2")])
        delete_all(path)
        with pytest.raises(StoreReplaced) as raised:
            await store.commit([event("c")])
        said = re.findall(r"(/proc/\S+) to COPY\.db(\S*?)(?:,|\. )", str(raised.value))
        for source, suffix in said:
            shutil.copy(source, tmp_path / f"copy.db{suffix}")

    async def read(store: Store) -> None:
        assert [record.payload for record in await store.read("zoo", 0, 2)] == [b"1", b"2"]
        assert await store.secret()

    stores_at(url(path)).run(scenario)
    stores_at(url(tmp_path / "copy.db")).run(read)


def test_a_service_without_its_files_is_not_ready(path: Path) -> None:
    with serving(open_store(url(path))) as wire:
        decision = wire.select()
        delete_all(path)
        answer = wire.post("/reward", json={"decision_id": decision["decision_id"], "reward": 1.0})
        assert answer.status_code == 503
        assert wire.get("/readyz").status_code == 503
        assert wire.get("/healthz").json()["status"] == "degraded"


# -- settings of the connections -------------------------------------------------------------------


def test_the_writer_syncs_each_commit_and_overwrites_deleted_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the defaults of the SQLite at hand, which often overwrites by itself."""
    connect = sqlite3.connect

    def lax(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*arguments, **options)
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA secure_delete = OFF")
        return db

    monkeypatch.setattr(sqlite3, "connect", lax)

    db = sqlite_file.connect_to_write(path)
    full, on = 2, 1
    assert db.execute("PRAGMA synchronous").fetchone() == (full,)
    assert db.execute("PRAGMA secure_delete").fetchone() == (on,)
    db.close()
