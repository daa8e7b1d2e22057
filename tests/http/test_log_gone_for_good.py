"""The service ends while the log is gone: what is lost with it is said."""

from collections.abc import Sequence

import pytest

from service.errors import StoreUnavailable
from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from tests.support.service import serving


class Disk(MemoryStore):
    full = False

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if self.full:
            raise StoreUnavailable("database or disk is full")
        return await super().commit(entries)


def test_decisions_that_end_with_the_service_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    with serving(disk) as wire:
        disk.full = True
        assert [wire.select()["logged"] for _ in range(3)] == [False] * 3
    assert "3 answered decisions are lost" in caplog.text
