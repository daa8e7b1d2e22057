"""A replica that does not get to read what others append is not ready, and is again afterwards."""

import asyncio
from collections.abc import Mapping
from math import inf

import pytest

import service.log.journal
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.serving.settlement import RewardRequest
from service.state.events import ArmUpserted, encode_event
from tests.support.service import serving


class Stuck(MemoryStore):
    shared = True
    stuck = waits = False

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        while self.stuck:
            self.waits = True
            await asyncio.sleep(0.01)
        await super().wait(positions, min(seconds, 0.02))


def test_who_is_behind_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.log.journal, "BEHIND_SECONDS", 60.0)
    store = Stuck()
    with serving(store) as wire:
        live = wire.services.journal.live["shop"]
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


class Looked(MemoryStore):
    shared = True
    looks = 0

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        self.looks += 1
        await super().wait(positions, min(seconds, 0.01))


def test_a_commit_of_several_reads_up_what_others_appended_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service.log.journal, "DISCOVER_SECONDS", 3_600.0)
    monkeypatch.setattr(service.log.journal, "TOGETHER_SECONDS", 3_600.0)  # no look comes first
    store = Looked()
    with serving(store) as wire:
        live = wire.services.journal.live["shop"]
        wire.until(lambda: store.looks == 1)
        wire.sleep(0.05)
        tokens = [wire.select()["decision_id"] for _ in range(2)]
        before, at = live.caught_up_at, live.state.position

        async def reward() -> None:
            other = ArmUpserted(at=0.0, arm="ball", features={"kind": "toy"})
            await store.commit([Append("shop", encode_event(other), {"other": ""})])
            settle = wire.services.settlements.reward
            await asyncio.gather(*(settle(RewardRequest(token, 1.0)) for token in tokens))

        wire.run(reward())
        assert live.state.position == at + 3
        assert live.caught_up_at > before


def test_what_a_commit_has_read_up_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.log.journal, "DISCOVER_SECONDS", 3_600.0)
    store = Looked()
    with serving(store) as wire:
        live = wire.services.journal.live["shop"]
        wire.until(lambda: store.looks > 1)
        before, decision = live.caught_up_at, wire.select()
        wire.reward(decision, 1.0)
        assert live.caught_up_at > before
        monkeypatch.setattr(service.log.journal, "TOGETHER_SECONDS", 0.005)
        live.caught_up_at = inf  # as if a commit were always just over
        wire.sleep(0.05)  # the look that was under way
        looks = store.looks
        wire.sleep(0.1)
        assert store.looks == looks
        live.caught_up_at = -inf
        wire.until(lambda: store.looks > looks)
