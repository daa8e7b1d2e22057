"""A log that comes back without its last events, as a Redis host that lost power may."""

import asyncio
import logging
from collections.abc import Sequence
from functools import reduce

import pytest

from service.errors import StoreUnavailable
from service.log import losses
from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from service.log.writer import RETRY_SECONDS
from service.state.checksum import begin, extend
from service.state.fold import State
from tests.support.service import Wire, expect_problem, serving

LOSSES = 'forage_log_losses_total{experiment="shop"}'


class Forgetful(MemoryStore):
    """A store that several processes append to, and that can lose the end of its log."""

    shared = True
    gone = False

    async def open(self) -> None:
        self._moved = asyncio.Event()  # each service of a test has a loop of its own
        await super().open()

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if self.gone:
            raise StoreUnavailable("connection refused")
        return await super().commit(entries)

    def lose(self, experiment: str, events: int) -> None:
        kept = self._experiments[experiment]
        end = kept.position = kept.position - events
        kept.events = {at: payload for at, payload in kept.events.items() if at <= end}
        kept.checksum = reduce(extend, kept.events.values(), begin(0))
        kept.marks = {i: mark for i, mark in kept.marks.items() if mark.position <= end}

    def lose_rows(self, experiment: str, rows: int) -> None:
        kept = self._experiments[experiment]
        for decision in [*kept.decisions][-rows:]:
            del kept.decisions[decision], kept.numbers[decision]
        kept.counts.subtract({"linucb": rows})

    def end(self, experiment: str) -> int:
        return self._experiments[experiment].position


def teach(wire: Wire, rewards: int) -> None:
    for _ in range(rewards):
        wire.reward(wire.select(policy="linucb"), 1.0)


def learned(wire: Wire) -> int:
    rewards: int = wire.policy("linucb")["rewards"]
    return rewards


@pytest.mark.parametrize("further", [0, 1, 3])
def test_rewards_that_a_log_lost_are_appended_again_and_learned_once(
    further: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No reward is acknowledged under a position that is folded already and then learned nowhere.
    With `further` = 3 the log is as long as before, and holds other events."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        with caplog.at_level(logging.ERROR):
            store.lose("shop", 3)
            teach(wire, further)
            wire.until(lambda: wire.metrics().get(LOSSES) == 1)
            wire.until(lambda: learned(wire) == 3 + further)
            wire.until(lambda: "lost rewards were appended again" in caplog.text)
        assert "the log has lost events" in caplog.text
        assert wire.get("/readyz").status_code == 200
        teach(wire, 1)
        assert learned(wire) == 4 + further
    with serving(store) as wire:
        assert learned(wire) == 4 + further


def test_an_entry_that_is_not_recent_is_not_appended_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention may have forgotten its mark, and it would be learned twice."""
    monkeypatch.setattr(losses, "RECENT_SECONDS", 0.0)
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        wire.sleep(0.01)
        store.lose("shop", 2)
        wire.until(lambda: wire.metrics().get(LOSSES) == 1)
        wire.sleep(0.1)
        assert learned(wire) == 1


def test_what_was_erased_is_not_appended_again() -> None:
    store = Forgetful()
    with serving(store) as wire:
        decision = wire.select(policy="linucb", unit="ann")
        wire.reward(decision, 1.0)
        assert wire.delete("/units/ann").json()["erased"]["shop"]["decisions"] == 1
        assert wire.run(wire.services.journal._losses._append_again("shop")) == 0
        assert wire.get(f"/decisions/{decision['id']}").status_code == 404


def test_a_snapshot_beyond_the_end_of_the_log_is_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stopped and started cleanly: the snapshot holds rewards that the log does not."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 5)
    store.lose("shop", 2)
    with serving(store) as wire:
        assert "the snapshot at position" in caplog.text
        assert learned(wire) == 3
        teach(wire, 1)
        assert learned(wire) == 4


def test_a_snapshot_whose_last_event_was_replaced_is_not_served() -> None:
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 5)
    end = store.end("shop")
    store.lose("shop", 2)
    saved, store._experiments["shop"].snapshots = store._experiments["shop"].snapshots, {}
    with serving(store) as wire:
        teach(wire, 2)
    assert store.end("shop") == end
    store._experiments["shop"].snapshots = saved
    with serving(store) as wire:
        wire.until(lambda: learned(wire) == 5)
        kept = wire.get("/policies/linucb").json()
    store._experiments["shop"].snapshots = {}
    with serving(store) as wire:
        assert wire.get("/policies/linucb").json()["mean_reward"] == kept["mean_reward"]


def test_after_a_clean_restart_a_loss_is_noticed_before_the_next_acknowledgement() -> None:
    """What was folded last stands in the snapshot, not in this process."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 5)
    with serving(store) as wire:
        assert learned(wire) == 5
        store.lose("shop", 2)
        teach(wire, 1)
        assert learned(wire) == 4


def test_an_emptied_log_is_not_served_as_if_it_were_new(caplog: pytest.LogCaptureFixture) -> None:
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        store.lose("shop", store.end("shop"))
        wire.until(lambda: wire.get("/readyz").status_code == 503)
        assert "the log was emptied" in caplog.text
        wire.sleep(2.5 * RETRY_SECONDS)
        assert wire.get("/readyz").status_code == 503
        health = wire.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        decision = wire.select()
        answer = wire.post("/reward", {"decision_id": decision["decision_id"], "reward": 1.0})
        expect_problem(answer, 503)


def test_a_reward_that_meets_an_emptied_log_is_not_acknowledged() -> None:
    """It is the log's only event then. The experiment is not served as if it were new."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        decision = wire.select()
        store.lose("shop", store.end("shop"))
        body = {"decision_id": decision["decision_id"], "reward": 1.0}
        expect_problem(wire.post("/reward", body), 503)
        wire.sleep(2.5 * RETRY_SECONDS)
        expect_problem(wire.post("/reward", body), 503)
        assert wire.get("/readyz").status_code == 503
        assert wire.get("/healthz").status_code == 503


def test_a_log_that_was_gone_and_comes_back_without_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        store.gone = True
        wire.select()
        wire.until(lambda: "connection refused" in caplog.text)
        store.lose("shop", 3)
        store.gone = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        wire.until(lambda: learned(wire) == 3)
        assert caplog.text.count("the log has lost events") == 1


def test_decision_rows_that_were_lost_without_an_event_are_said_and_appended_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 1)
        decisions = [wire.select(policy="linucb") for _ in range(3)]
        journal = wire.services.journal
        review = journal._losses.expect_rows
        wire.run(review(journal.live["shop"]))
        assert wire.metrics()[LOSSES] == 0
        store.lose_rows("shop", 2)
        wire.run(review(journal.live["shop"]))
        assert wire.metrics()[LOSSES] == 1
        assert "and 2 decision rows or more" in caplog.text
        wire.until(lambda: state_of(wire).epoch == 1)
        for decision in decisions:
            wire.until(
                lambda decision=decision: wire.get(f"/decisions/{decision['id']}").is_success
            )
        wire.run(review(journal.live["shop"]))
        assert wire.metrics()[LOSSES] == 1


def test_a_log_that_loses_its_tail_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each loss takes the event that told of the one before, and is said."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 2)
        for number in range(1, 4):
            store.lose("shop", store.end("shop") - 1)
            wire.until(lambda number=number: wire.metrics().get(LOSSES) == number)
            wire.until(lambda number=number: state_of(wire).epoch == number)
            wire.until(lambda: learned(wire) == 2)
    with serving(store) as wire:
        assert state_of(wire).epoch == 3
        assert learned(wire) == 2


def state_of(wire: Wire) -> State:
    return wire.services.journal.live["shop"].state
