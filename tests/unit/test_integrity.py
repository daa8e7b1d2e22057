"""The background check finds what cannot be read, before somebody needs it."""

import asyncio
import re
from pathlib import Path

import pytest

from service.log.stores import Store, open_store
from service.log.stores.base import Erasure, Snapshot
from service.log.stores.memory import MemoryStore
from service.maintenance.integrity import Integrity
from service.observability.telemetry import Telemetry
from tests.support.service import serving
from tests.support.stores import event


async def checked(store: Store) -> int:
    await store.open()
    telemetry = Telemetry()
    try:
        found = await Integrity(store, 1e9, telemetry).check()
    finally:
        await store.close()
    assert f"forage_integrity_faults {found:.1f}" in telemetry.expose().decode()
    return found


def played(store: Store, rewards: int = 150) -> None:
    with serving(store) as wire:
        for _ in range(rewards):
            wire.reward(wire.select(policy="linucb"), 1.0)


def test_a_whole_store_has_no_fault(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/forage.db"
    played(open_store(url))
    assert asyncio.run(checked(open_store(url, readonly=True))) == 0


def test_damaged_pages_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "forage.db"
    played(open_store(f"sqlite:///{path}"))
    content = bytearray(path.read_bytes())
    for page in range(len(content) // 4096 // 2, len(content) // 4096):
        content[4096 * page : 4096 * page + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert asyncio.run(checked(open_store(f"sqlite:///{path}", readonly=True))) > 0
    assert "is damaged" in caplog.text


def test_what_lies_behind_a_damaged_page_is_read_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "forage.db"
    played(open_store(f"sqlite:///{path}"), rewards=450)
    content = bytearray(path.read_bytes())
    events = [at for at in range(0, len(content), 4096) if b'"Rewarded"' in content[at : at + 4096]]
    for at in (events[len(events) // 4], events[-len(events) // 4]):
        content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    asyncio.run(checked(open_store(f"sqlite:///{path}", readonly=True)))
    found = set(re.findall(r"events after position (\d+) is damaged", caplog.text))
    assert len(found) == 2, caplog.text


def test_each_kind_of_damage_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    played(store)

    async def damage() -> None:
        name = "shop"
        await store.erase(name, Erasure(events={2: b"not an event"}))
        await store.save_snapshot(name, Snapshot(10**6, b"not a snapshot"))
        await store.put_blob(name, "0" * 64, b"of another name")
        await store.commit([event("x", b"neither", experiment=name)])

    asyncio.run(damage())
    assert asyncio.run(checked(store)) == 4
    for what in ("event 2", "snapshot at 1000000", f"artifact {'0' * 64}"):
        assert f"experiment shop: {what} is damaged" in caplog.text
