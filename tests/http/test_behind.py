"""A replica that cannot read the events of others is not ready, and is again afterwards."""

import asyncio
from collections.abc import Mapping

import pytest

import service.log.log
from tests.support.service import serving
from tests.support.stores import SharedStore


class Stuck(SharedStore):
    stuck = waits = False

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        while self.stuck:
            self.waits = True
            await asyncio.sleep(0.01)
        await super().wait(positions, min(seconds, 0.02))


def test_a_replica_behind_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.log.log, "BEHIND_SECONDS", 60.0)
    store = Stuck()
    with serving(store) as wire:
        live = wire.services.log.replicas.by_name["shop"]
        begun = live.caught_up_at
        wire.until(lambda: live.caught_up_at != begun)
        assert wire.get("/readyz").status_code == 200
        store.stuck = True
        wire.until(lambda: store.waits)
        live.caught_up_at -= 61
        answer = wire.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert wire.get("/healthz").json()["status"] == "ok"
        store.stuck = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
