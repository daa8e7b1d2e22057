"""A replica that does not get to read what others append is not ready, and is again afterwards."""

import asyncio
from collections.abc import Mapping

import pytest

import service.journal
from service.stores.memory import MemoryStore
from tests.support.service import serving


class Stuck(MemoryStore):
    shared = True
    stuck = False

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        while self.stuck:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await super().wait(positions, min(seconds, 0.02))


def test_who_is_behind_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.journal, "BEHIND_SECONDS", 0.2)
    store = Stuck()
    with serving(store) as wire:
        wire.sleep(0.4)
        assert wire.get("/readyz").status_code == 200
        store.stuck = True
        wire.sleep(0.4)
        answer = wire.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert wire.get("/healthz").json()["status"] == "ok"
        store.stuck = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
