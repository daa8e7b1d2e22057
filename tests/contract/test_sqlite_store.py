"""What only the embedded store can show: its lock, its followers, its file, the disk below."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from service.errors import (
    ConfigurationError,
    Damaged,
    StoreError,
    StoreLocked,
    StoreUnavailable,
    UnknownSchema,
)
from service.log.stores import Store, open_store, sqlite_file
from service.log.stores.base import Appended, Blob, Entry, Mark, Record, Snapshot
from tests.support.stores import Scenario, decision, event, expect_dense, over_sqlite, stores_at

SERVICE = """
import asyncio, sys
from service.log.stores import open_store
from service.log.stores.base import Append

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    for n in range(10_000):
        await store.commit([Append("zoo", b"%d" % n, {str(n): "1.0"})])
        print(n, flush=True)

asyncio.run(main())
"""


def run(path: Path, scenario: Scenario) -> None:
    stores_at(f"sqlite:///{path}").run(scenario)


async def write_one(store: Store) -> None:
    await store.commit([event("a")])


def refused(path: Path, error: type[Exception], *, readonly: bool = False) -> str:
    """What opening says. The store is closed by then: nothing is left to clean up."""
    with pytest.raises(error) as raised:
        asyncio.run(open_store(f"sqlite:///{path}", readonly=readonly).open())
    return str(raised.value)


@over_sqlite
async def test_one_service_at_a_time(store: Store, path: Path) -> None:
    second = open_store(f"sqlite:///{path}")
    with pytest.raises(StoreLocked, match=r"forage\.db is served by another forage process"):
        await second.open()
    await store.close()
    await second.open()
    assert await second.commit([event("a")]) == [Appended(1, ANY)]
    await second.close()


@pytest.mark.process
def test_a_killed_service_loses_nothing_and_frees_the_lock(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE, f"sqlite:///{path}"], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        acknowledged = [int(service.stdout.readline()) for _ in range(50)]
        assert "another forage process" in refused(path, StoreLocked)
        service.kill()
        acknowledged += [int(line) for line in service.stdout]

    async def scenario(store: Store) -> None:
        kept = [int(record.payload) for record in await store.read("zoo", 0, 20_000)]
        assert kept == list(range(len(kept)))
        assert set(acknowledged) <= set(kept)
        await expect_dense(store, len(kept))

    run(path, scenario)


@over_sqlite
async def test_a_follower_sees_every_commit_and_writes_none(store: Store, path: Path) -> None:
    secret = await store.secret()
    trainer = open_store(f"sqlite:///{path}", readonly=True)
    await trainer.open()
    waiting = asyncio.create_task(trainer.wait({"zoo": 0}, seconds=60))
    await store.commit([event("a", b"1"), decision("d", 1.0)])
    await asyncio.wait_for(waiting, 5)
    assert await trainer.read("zoo", 0, 9) == [Record(1, b"1")]
    assert await trainer.due("zoo", 1.0, 9) == [b"d"]
    assert await trainer.secret() == secret
    for write in (
        trainer.commit([event("b")]),
        trainer.put("zoo", Snapshot(1, b"s")),
        trainer.put("zoo", Blob("k", b"b")),
    ):
        with pytest.raises(StoreError, match="open read-only"):
            await write
    await store.close()
    assert await trainer.read("zoo", 0, 9) == [Record(1, b"1")]
    await trainer.close()


def test_a_follower_may_come_before_the_service(path: Path) -> None:
    assert "does not exist yet" in refused(path, StoreUnavailable, readonly=True)
    assert not list(path.parent.iterdir())
    path.touch()

    async def main() -> None:
        trainer = open_store(f"sqlite:///{path}", readonly=True)
        with pytest.raises(StoreUnavailable, match="has no tables yet"):
            await trainer.open()
        service = open_store(f"sqlite:///{path}")
        await service.open()
        await service.commit([event("a")])
        await trainer.open()
        assert await trainer.experiments() == ["zoo"]
        await trainer.close()
        await service.close()

    asyncio.run(main())


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process may grow beyond the write-ahead log as it is now, and a page."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name(f"{path.name}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_batch_and_nothing_else(path: Path) -> None:
    large: list[Entry] = [event("b", os.urandom(200_000)), event("c"), decision("d", 1.0)]

    async def scenario(store: Store) -> None:
        await store.commit([event("a")])
        with full_disk(path):
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"forage\.db"):
                    await store.commit(large)
                with pytest.raises(StoreUnavailable, match=r"forage\.db"):
                    await store.commit([])
            assert await store.marks("zoo", ["a", "b", "c"]) == {"a": Mark("1.0", 1)}
        assert (await store.commit(large))[:2] == [Appended(2, ANY), Appended(3, ANY)]
        await expect_dense(store, 3)

    run(path, scenario)
    run(path, lambda store: expect_dense(store, 3))


@over_sqlite
async def test_a_batch_that_fails_half_way_is_undone(store: Store) -> None:
    with pytest.raises(UnicodeEncodeError):
        await store.commit([decision("d"), event("b"), event("\ud800")])
    assert await store.commit([event("a")]) == [Appended(1, ANY)]
    assert await store.decision("zoo", "d") is None


def test_another_writer_is_waited_for_and_then_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.05)

    async def scenario(store: Store) -> None:
        person = sqlite3.connect(path, isolation_level=None)
        person.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"):
            await store.commit([event("a")])
        person.execute("ROLLBACK")
        person.close()
        assert await store.commit([event("a")]) == [Appended(1, ANY)]

    run(path, scenario)


@pytest.mark.parametrize("readonly", [False, True])
def test_files_of_others_and_of_another_layout_are_refused_and_left_alone(
    path: Path, readonly: bool
) -> None:
    def expect(error: type[Exception], said: str) -> None:
        before = path.read_bytes()
        assert said in refused(path, error, readonly=readonly)
        assert path.read_bytes() == before
        path.unlink()

    path.write_bytes(b"not a database" * 1000)
    expect(ConfigurationError, "forage.db is not an SQLite database")
    change(path, "CREATE TABLE photos (id)")
    expect(ConfigurationError, "the database of another program")
    run(path, write_one)
    change(path, "PRAGMA user_version = 7")
    expect(UnknownSchema, "has layout 7, and this Forage reads layout 2")


def test_a_damaged_page_is_said(path: Path) -> None:
    async def fill(store: Store) -> None:
        await store.commit([event(str(n), bytes(500)) for n in range(100)])

    async def scenario(store: Store) -> None:
        with pytest.raises(Damaged, match="malformed"):
            await store.read("zoo", 0, 100)

    run(path, fill)
    healthy = path.read_bytes()
    path.write_bytes(healthy[:8192] + b"\xff" * (len(healthy) - 8192))
    run(path, scenario)


def change(path: Path, statement: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement)
    db.close()


def test_a_closed_store_is_unavailable(path: Path) -> None:
    async def main() -> None:
        store = open_store(f"sqlite:///{path}")
        with pytest.raises(StoreUnavailable, match="is not open"):
            await store.commit([event("a")])
        await store.open()
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable, match="is not open"):
            await store.read("zoo", 0, 1)

    asyncio.run(main())


def test_commits_write_the_write_ahead_log_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header changes when it begins again."""
    monkeypatch.setattr(sqlite_file, "WAL_PAGES", 100)
    log = path.with_name("forage.db-wal")

    async def scenario(store: Store) -> None:
        await store.commit([event("first")])
        header = log.read_bytes()[:32]
        for n in range(50):
            await store.commit([decision(f"{n}", 1.0), event(f"{n}", settles=[f"{n}"])])
        assert log.read_bytes()[:32] != header
        await expect_dense(store, 51)

    run(path, scenario)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://forage.db", "sqlite:///:memory:", "sqlite:///a?b"]
)
def test_a_url_must_name_a_file_in_a_folder_that_is_there(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///relative\.db"):
        open_store(url)
    assert "does not exist" in refused(tmp_path / "missing" / "forage.db", ConfigurationError)
