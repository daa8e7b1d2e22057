"""A log that comes back without its last events, as a Redis host that lost power may."""

import asyncio
import logging
from collections.abc import Callable
from copy import deepcopy

import pytest
from msgspec import structs

from service.log.committer import RETRY_SECONDS
from service.log.stores.base import Append, digest
from service.state.events import LogTruncated, decode_event, encode_event
from tests.support.service import Wire, expect_problem, serving
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
        kept.digest = digest(kept.events[end]) if end else ""
        kept.marks = {i: mark for i, mark in kept.marks.items() if mark.position <= end}

    def lose_rows(self, rows: int) -> None:
        kept = self._experiments["shop"]
        for decision in [*kept.decisions][-rows:]:
            del kept.decisions[decision], kept.numbers[decision]
        kept.rows -= rows
        kept.counts.subtract({"linucb": rows})

    def end(self) -> int:
        return self._experiments["shop"].position


@pytest.fixture
def store() -> Forgetful:
    return Forgetful()


def told(wire: Wire) -> list[LogTruncated]:
    """What the log tells of its losses."""
    records = wire.run(wire.services.store.read("shop", 0, 1_000))
    events = [decode_event(record.payload) for record in records]
    return [event for event in events if isinstance(event, LogTruncated)]


@pytest.mark.parametrize("further", [0, 1, 3])
def test_lost_events_are_told_and_a_reward_sent_again_is_learned_once(
    store: Forgetful, further: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No reward is acknowledged under a position that is folded already and then learned nowhere.
    With `further` = 3 the log is as long as before, and holds other events."""
    with serving(store) as wire:
        decisions = [wire.select(policy="linucb") for _ in range(3)]
        for decision in decisions:
            assert wire.reward(decision, 1.0) == "accepted"
        end = store.end()
        with caplog.at_level(logging.ERROR):
            store.lose(3)
            wire.teach(further)
            wire.until(lambda: wire.metrics().get(LOSSES) == 1)
            wire.until(lambda: wire.rewards() == further)
            wire.until(lambda: [event.last for event in told(wire)] == [end])
        assert "the log has lost events" in caplog.text
        assert wire.get("/readyz").status_code == 200
        for decision in decisions:
            assert wire.reward(decision, 1.0) == "accepted"
            assert wire.reward(decision, 1.0) == "duplicate"
        assert wire.rewards() == 3 + further
    with serving(store) as wire:
        assert wire.rewards() == 3 + further
        assert wire.metrics()[LOSSES] == 0


def test_a_token_from_beyond_the_end_tells_of_a_loss_that_nobody_saw(store: Forgetful) -> None:
    """The snapshot went with the events, while no service was running."""
    with serving(store) as wire:
        wire.teach(4)
        decision = wire.select(policy="linucb")
    end = store.end()
    store.lose(2)
    store._experiments["shop"].snapshots.clear()
    with serving(store) as wire:
        assert (wire.rewards(), told(wire)) == (2, [])
        assert wire.reward(decision, 1.0) == "accepted"
        wire.until(lambda: [event.last for event in told(wire)] == [end])
        assert wire.reward(decision, 1.0) == "duplicate"
        wire.teach()
        assert wire.rewards() == 4
        assert wire.metrics()[LOSSES] == 1
    with serving(store) as wire:
        assert wire.reward(decision, 1.0) == "duplicate"
        assert wire.metrics()[LOSSES] == 0


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


def expect_quarantined(wire: Wire) -> None:
    """The process lives, and its only experiment is not served."""
    health = wire.get("/healthz")
    assert health.status_code == 200
    assert (health.json()["status"], health.json()["quarantined"]) == ("ok", 1)
    assert wire.get("/readyz").status_code == 503


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
        expect_quarantined(wire)
        assert "the log was emptied" in wire.refuse(503, decision)["detail"]


def test_a_log_that_was_emptied_and_begun_anew_is_not_gone_on_with(
    store: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that started on the empty store has defined the experiment again."""
    with serving(store) as wire:
        wire.teach(3)
        decision = wire.select()
        definition = store._experiments["shop"].events[1]
        event = decode_event(definition)
        store.lose(store.end())
        anew = encode_event(structs.replace(event, at=event.at + 1.0))
        wire.run(store.commit([Append("shop", anew, {})]))
        wire.refuse(503, decision)
        wire.until(lambda: wire.get("/readyz").status_code == 503)
        assert "the log was emptied" in caplog.text


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
        expect_quarantined(wire)


@pytest.mark.parametrize("backup", ["newest", "older"])
def test_a_lost_log_stops_its_own_experiment_until_it_is_back(
    store: Forgetful, backup: str
) -> None:
    """The keys of one experiment are deleted under a running service, and restored later."""
    with serving(store) as wire:
        wire.teach(3)
        assert wire.put("/experiments/other", wire.definition()).status_code == 201
        whole = deepcopy(store._experiments["shop"])
        decision = wire.select(experiment="shop")
        store.lose(store.end())
        wire.until(lambda: wire.get("/healthz").json()["quarantined"] == 1)
        (stopped,) = wire.get("/status").json()["quarantined"]
        assert (stopped["name"], stopped["position"]) == ("shop", None)
        assert "the log was emptied, and 4 events" in stopped["reason"]
        body = {"experiment": "shop", "context": {"persona": "cat"}}
        expect_problem(wire.post("/select", body), 503)
        other = wire.select(experiment="other", policy="linucb")
        assert other["logged"] is True
        assert wire.reward(other, 1.0) == "accepted"
        assert wire.metrics()["forage_degraded"] == 0
        assert wire.get("/readyz").status_code == 200
        anew = structs.replace(decode_event(whole.events[1]), at=1e9)
        wire.run(store.commit([Append("shop", encode_event(anew), {})]))
        wire.sleep(2.0)
        assert wire.get("/healthz").json()["quarantined"] == 1  # begun anew by another process
        store._experiments["shop"] = whole
        if backup == "older":
            store.lose(1)
        wire.until(lambda: wire.get("/healthz").json()["quarantined"] == 0)
        assert wire.policy("linucb", "shop")["rewards"] == (3 if backup == "newest" else 2)
        assert wire.reward(decision, 1.0) == "accepted"


def test_a_log_that_begins_later_than_any_snapshot_stops_its_own_experiment(
    store: Forgetful,
) -> None:
    """Before, the service did not start."""
    with serving(store) as wire:
        wire.teach(3)
        assert wire.put("/experiments/other", wire.definition()).status_code == 201
    shop = store._experiments["shop"]
    shop.snapshots.clear()
    del shop.events[1]
    with serving(store) as wire:
        (stopped,) = wire.get("/status").json()["quarantined"]
        assert (stopped["name"], stopped["position"]) == ("shop", None)
        assert wire.reward(wire.select(experiment="other", policy="linucb"), 1.0) == "accepted"


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
        assert wire.rewards() == 0
        assert caplog.text.count("the log has lost events") == 1


def test_rows_that_were_lost_without_an_event_are_told_at_the_next_row(
    store: Forgetful, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(store) as wire:
        wire.teach()
        for _ in range(3):
            wire.select(policy="linucb")
        assert wire.metrics()[LOSSES] == 0
        store.lose_rows(2)
        wire.select(policy="linucb")
        assert wire.metrics()[LOSSES] == 1
        assert "the log has lost 2 decision rows or more" in caplog.text
        wire.until(lambda: [event.rows for event in told(wire)] == [2])
        wire.select(policy="linucb")
        assert wire.metrics()[LOSSES] == 1


def test_a_log_that_loses_its_tail_again_and_again(store: Forgetful) -> None:
    """Each loss takes the event that told of the one before, and is told."""

    def is_told(wire: Wire, number: int, last: int) -> Callable[[], bool]:
        return lambda: (
            wire.metrics()[LOSSES] == number and [event.last for event in told(wire)] == [last]
        )

    with serving(store) as wire:
        wire.teach(2)
        kept = store.end()
        for number in range(1, 4):
            wire.teach()
            end = store.end()
            store.lose(end - kept)
            wire.until(is_told(wire, number, end))
            assert wire.rewards() == 2
    with serving(store) as wire:
        assert wire.rewards() == 2
