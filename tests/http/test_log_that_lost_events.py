"""A log that comes back without its last events, as a Redis host that lost power may."""

import asyncio
import logging
from collections.abc import Callable
from functools import reduce

import pytest

from service.log.writer import RETRY_SECONDS
from service.state.checksum import begin, extend
from tests.support.service import Wire, serving
from tests.support.stores import Disk

LOSSES = 'forage_log_losses_total{experiment="shop"}'


class Forgetful(Disk):
    """A store that several processes append to, and that can lose the end of its log."""

    shared = True

    async def open(self) -> None:
        self._moved = asyncio.Event()  # each service of a test has a loop of its own
        await super().open()

    def lose(self, events: int) -> None:
        kept = self._experiments["shop"]
        end = kept.position = kept.position - events
        kept.events = {at: payload for at, payload in kept.events.items() if at <= end}
        kept.checksum = reduce(extend, kept.events.values(), begin(0))
        kept.marks = {i: mark for i, mark in kept.marks.items() if mark.position <= end}

    def lose_rows(self, rows: int) -> None:
        kept = self._experiments["shop"]
        for decision in [*kept.decisions][-rows:]:
            del kept.decisions[decision], kept.numbers[decision]
        kept.counts.subtract({"linucb": rows})

    def end(self) -> int:
        return self._experiments["shop"].position


@pytest.fixture
def store() -> Forgetful:
    return Forgetful()


def epoch(wire: Wire) -> int:
    return wire.services.journal.follower.live["shop"].state.epoch


@pytest.mark.parametrize("further", [0, 1, 3])
def test_lost_rewards_are_appended_again_and_learned_once(
    store: Forgetful, further: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No reward is acknowledged under a position that is folded already and then learned nowhere.
    With `further` = 3 the log is as long as before, and holds other events."""
    with serving(store) as wire:
        wire.teach(3)
        with caplog.at_level(logging.ERROR):
            store.lose(3)
            wire.teach(further)
            wire.until(lambda: wire.metrics().get(LOSSES) == 1)
            wire.until(lambda: wire.rewards() == 3 + further)
            wire.until(lambda: "lost rewards were appended again" in caplog.text)
        assert "the log has lost events" in caplog.text
        assert wire.get("/readyz").status_code == 200
        wire.teach()
        assert wire.rewards() == 4 + further
    with serving(store) as wire:
        assert wire.rewards() == 4 + further


def test_an_old_entry_is_not_appended_again(
    store: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may have forgotten its mark, and it would be learned twice."""
    monkeypatch.setattr("service.log.losses.RECENT_SECONDS", 0.0)
    with serving(store) as wire:
        wire.teach(3)
        wire.sleep(0.01)
        store.lose(2)
        wire.until(lambda: wire.metrics().get(LOSSES) == 1)
        wire.sleep(0.1)
        assert wire.rewards() == 1


def test_an_erased_decision_is_not_appended_again(store: Forgetful) -> None:
    with serving(store) as wire:
        decision = wire.select(policy="linucb", unit="ann")
        wire.reward(decision, 1.0)
        assert wire.delete("/units/ann").json()["erased"]["shop"]["decisions"] == 1
        assert wire.run(wire.services.journal.losses._append_again("shop")) == 0
        assert wire.get(f"/decisions/{decision['id']}").status_code == 404


def test_a_snapshot_of_lost_or_replaced_events_is_not_served(
    store: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped and started cleanly: the snapshot holds rewards that the log does not."""
    with serving(store) as wire:
        wire.teach(5)
    end, shop = store.end(), store._experiments["shop"]
    store.lose(2)
    with serving(store) as wire:
        assert "the snapshot at position" in caplog.text
        assert wire.rewards() == 3
    saved, shop.snapshots = shop.snapshots, {}
    with serving(store) as wire:
        wire.teach(2)
    assert store.end() >= end  # as long as before, with other events
    shop.snapshots = saved
    with serving(store) as wire:
        wire.until(lambda: wire.rewards() == 5)


def test_after_a_clean_restart_a_loss_is_noticed_before_the_next_acknowledgement(
    store: Forgetful,
) -> None:
    """The snapshot knows the last event, not this process."""
    with serving(store) as wire:
        wire.teach(5)
    with serving(store) as wire:
        assert wire.rewards() == 5
        store.lose(2)
        wire.teach()
        assert wire.rewards() == 4


@pytest.mark.parametrize("notice", ["by itself", "by a reward"])
def test_an_emptied_log_is_not_served_as_if_it_were_new(
    store: Forgetful, notice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reward that meets it, as the log's only event, is not acknowledged."""
    with serving(store) as wire:
        wire.teach(3)
        decision = wire.select()
        store.lose(store.end())
        if notice == "by a reward":
            wire.refuse(503, decision)
        else:
            wire.until(lambda: wire.get("/readyz").status_code == 503)
            assert "the log was emptied" in caplog.text
        wire.sleep(2.5 * RETRY_SECONDS)
        assert wire.get("/readyz").status_code == 503
        health = wire.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        wire.refuse(503, decision)


def test_a_reward_from_another_replica_that_meets_an_emptied_log_is_refused(
    store: Forgetful,
) -> None:
    """The decision was made further on in the log than this replica has folded."""
    with serving(store) as ahead:
        ahead.teach(3)
        decision = ahead.select()
    store.lose(2)
    with serving(store) as wire:
        store.lose(store.end())
        wire.refuse(503, decision)
        health = wire.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "failed")


def test_a_log_that_was_gone_and_comes_back_without_events(
    store: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(store) as wire:
        wire.teach(3)
        store.full = True
        wire.select()
        wire.until(lambda: "disk is full" in caplog.text)
        store.lose(3)
        store.full = False
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        wire.until(lambda: wire.rewards() == 3)
        assert caplog.text.count("the log has lost events") == 1


def test_rows_that_were_lost_without_an_event_are_said_and_appended_again(
    store: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(store) as wire:
        wire.teach()
        decisions = [wire.select(policy="linucb") for _ in range(3)]
        journal = wire.services.journal

        def losses() -> float:
            wire.run(journal.losses.expect_rows(journal.follower.live["shop"]))
            return wire.metrics()[LOSSES]

        assert losses() == 0
        store.lose_rows(2)
        assert losses() == 1
        assert "and 2 decision rows or more" in caplog.text
        wire.until(lambda: epoch(wire) == 1)
        paths = [f"/decisions/{decision['id']}" for decision in decisions]
        wire.until(lambda: all(wire.get(path).is_success for path in paths))
        assert losses() == 1


def test_a_log_that_loses_its_tail_again_and_again(store: Forgetful) -> None:
    """Each loss takes the event that told of the one before, and is said."""

    def is_said(wire: Wire, number: int) -> Callable[[], bool]:
        return lambda: (
            wire.metrics().get(LOSSES) == number and epoch(wire) == number and wire.rewards() == 2
        )

    with serving(store) as wire:
        wire.teach(2)
        for number in range(1, 4):
            store.lose(store.end() - 1)
            wire.until(is_said(wire, number))
    with serving(store) as wire:
        assert (epoch(wire), wire.rewards()) == (3, 2)
