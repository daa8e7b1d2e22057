"""Bugs of a store or of the fold: every request is answered, and the service says so."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from service.state.fold import State
from tests.support.service import Wire, expect_problem, serving


class Buggy(MemoryStore):
    bug = False

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if self.bug:
            raise ValueError("a bug")
        return await super().commit(entries)


def test_a_store_with_a_bug_costs_no_answer() -> None:
    store = Buggy()
    with serving(store) as wire:
        decision = wire.select()
        store.bug = True
        assert wire.select()["logged"] is False
        wire.refuse(503, decision)
        assert wire.get("/readyz").status_code == 503
        store.bug = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        assert wire.reward(decision, 1.0) == "accepted"


def test_an_event_that_a_bug_keeps_from_being_folded_is_folded_once_the_bug_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its experiment is quarantined until the next start; the process is ready all the time."""
    store = f"sqlite:///{tmp_path}/forage.db"
    with serving(store=store) as wire:
        decision = wire.select(policy="linucb")
        with monkeypatch.context() as broken:
            broken.delattr(State, "_settle")
            wire.refuse(503, decision)
        assert wire.get("/readyz").status_code == 200
        expect_problem(wire.get("/policies"), 503)
    with serving(store=store) as wire:
        assert wire.reward(decision, 1.0) == "duplicate"
        assert wire.rewards() == 1


def test_names_of_no_experiment_are_not_kept(wire: Wire) -> None:
    for name in range(20):
        expect_problem(wire.get(f"/experiments/none-{name}"), 404)
    assert list(wire.services.log.replicas.by_name) == ["shop"]
