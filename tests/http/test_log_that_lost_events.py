"""A log that comes back without its last events, as a Redis host that lost power may."""

import logging
from collections.abc import Sequence

import pytest

from service.errors import StoreUnavailable
from service.log.stores.base import CommitResult, Entry
from service.log.stores.memory import MemoryStore
from service.log.writer import RETRY_SECONDS
from tests.support.service import Wire, expect_problem, serving


class Forgetful(MemoryStore):
    """A store that several processes append to, and that can lose the end of its log."""

    shared = True
    gone = False

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        if self.gone:
            raise StoreUnavailable("connection refused")
        return await super().commit(entries)

    def lose(self, experiment: str, events: int) -> None:
        kept = self._experiments[experiment]
        end = kept.position = kept.position - events
        kept.events = {at: payload for at, payload in kept.events.items() if at <= end}
        kept.marks = {i: mark for i, mark in kept.marks.items() if mark.position <= end}


def teach(wire: Wire, rewards: int) -> None:
    for _ in range(rewards):
        wire.reward(wire.select(policy="linucb"), 1.0)


@pytest.mark.parametrize("further", [0, 1, 3])
def test_a_service_ahead_of_its_log_says_so_until_it_starts_again(
    further: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its head holds what the log does not: rewards that it goes on to take under positions that
    are folded already would be learned nowhere."""
    store = Forgetful()
    with serving(store) as wire:
        teach(wire, 3)
        store.lose("shop", 3)
        teach(wire, further)
        with caplog.at_level(logging.ERROR):
            wire.until(lambda: wire.get("/readyz").status_code == 503)
        assert "lost events" in caplog.text
        wire.sleep(2.5 * RETRY_SECONDS)
        assert wire.get("/readyz").status_code == 503
        answer = wire.post("/reward", {"decision_id": wire.select()["decision_id"], "reward": 1.0})
        expect_problem(answer, 503)
    with serving(store) as wire:
        assert wire.policy("linucb")["rewards"] == further
        teach(wire, 1)
        assert wire.policy("linucb")["rewards"] == further + 1


def test_a_log_that_is_gone_and_comes_back_without_events_is_told_as_both(
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
        wire.until(lambda: "lost events" in caplog.text)
        wire.sleep(2.5 * RETRY_SECONDS)
        assert caplog.text.count("lost events") == 1
        assert wire.get("/readyz").status_code == 503
