"""Something fails that nobody foresaw: no request waits for ever, and the service says so."""

from collections.abc import Sequence

import pytest

from service.fold import State
from service.stores.base import Entry, Outcome
from service.stores.memory import MemoryStore
from tests.support.service import expect_problem, serving


class Buggy(MemoryStore):
    bug = False

    async def commit(self, entries: Sequence[Entry]) -> list[Outcome]:
        if self.bug:
            raise ValueError("nobody thought of this")
        return await super().commit(entries)


def test_a_store_with_a_bug_costs_no_answer() -> None:
    store = Buggy()
    with serving(store) as wire:
        decision = wire.select()
        store.bug = True
        assert wire.select()["logged"] is False
        reward = {"decision_id": decision["decision_id"], "reward": 1.0}
        expect_problem(wire.post("/reward", reward), 503)
        assert wire.get("/readyz").status_code == 503
        store.bug = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        assert wire.reward(decision, 1.0) == "accepted"


def test_an_event_that_cannot_be_folded_stops_readiness_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as wire:
        decision = wire.select()
        with monkeypatch.context() as broken:
            broken.delattr(State, "_settle")
            reward = {"decision_id": decision["decision_id"], "reward": 1.0}
            expect_problem(wire.post("/reward", reward), 503)
            wire.sleep(0.6)
            assert wire.get("/readyz").status_code == 503
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        assert wire.reward(decision, 1.0) == "duplicate"
        assert wire.get("/policies").json()["policies"][0]["rewards"] <= 1


def test_names_of_no_experiment_are_not_kept() -> None:
    with serving() as wire:
        for name in range(20):
            expect_problem(wire.get(f"/experiments/none-{name}"), 404)
        assert list(wire.services.journal.live) == ["shop"]
