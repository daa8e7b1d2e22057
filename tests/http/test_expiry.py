"""The search for decisions past `reward_by`: what it costs, and where there is no default."""

from collections.abc import Sequence

import pytest

from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from tests.support.clock import VirtualClock
from tests.support.service import Wire, serving


class Counted(MemoryStore):
    """searches, commits: how often the log was asked."""

    searches = commits = 0

    async def due(self, experiment: str, now: float, limit: int) -> list[bytes]:
        self.searches += 1
        return await super().due(experiment, now, limit)

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        self.commits += 1
        return await super().commit(entries)


def rules(wire: Wire, **rules: object) -> None:
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward=rules)


def test_a_default_that_was_taken_back_leaves_open_decisions_without_one(
    clock: VirtualClock,
) -> None:
    """They are not searched for, and a new default holds for them too."""
    store = Counted()
    with serving(store, clock=clock) as wire:
        rules(wire, wait_seconds=60)
        wire.select()
        rules(wire, wait_seconds=60, default=None)
        wire.pass_by(60)
        assert store.searches == 0
        assert wire.policy("linucb")["rewards"] == 0
        rules(wire, wait_seconds=60, default=0.5)
        wire.pass_by(0)
        assert wire.policy("linucb")["rewards"] == 1
        assert wire.policy("linucb")["mean_reward"] == 0.5


def test_defaults_that_fall_due_together_share_commits(clock: VirtualClock) -> None:
    store = Counted()
    with serving(store, clock=clock) as wire:
        rules(wire, wait_seconds=60)
        wire.post("/select/batch", {"requests": [{"context": {"persona": "cat"}}] * 200})
        store.commits = 0
        wire.pass_by(60)
        assert wire.policy("linucb")["rewards"] == 200
        assert store.commits <= 5


def test_the_service_itself_looks_for_what_is_due_again_and_again(clock: VirtualClock) -> None:
    with serving(expiry_seconds=0.01, clock=clock) as wire:
        rules(wire, wait_seconds=60)
        for count in (1, 2):
            wire.select()
            clock.skip(60)
            wire.until(lambda: wire.policy("linucb")["rewards"] == count)  # noqa: B023


def test_a_damaged_row_does_not_hold_up_the_others(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays open, which is said once."""
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        rules(wire, wait_seconds=60)
        first, _ = wire.select(), wire.select()
        rows = store._experiments["shop"].decisions
        rows[first["id"]] = rows[first["id"]].replace(b"cat", b"cow")
        for _ in range(2):
            wire.pass_by(60)
            assert wire.policy("linucb")["rewards"] == 1
        wire.select()
        wire.pass_by(60)
        assert wire.policy("linucb")["rewards"] == 2
    said = [record.message for record in caplog.records if "default reward" in record.message]
    assert len(said) == 1
