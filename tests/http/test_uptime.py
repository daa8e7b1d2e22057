"""Nothing depends on how long the host has been up, on whose clock the service counts seconds."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import pytest

from service.log.presence import Presence
from service.log.reading import Progress
from service.telemetry.drift import Drift
from tests.support.clock import VirtualClock
from tests.support.keys import Keys
from tests.support.service import Wire, serving
from tests.support.stores import SharedStore, SlowDisk

T = TypeVar("T")

UPTIMES_S = (0.0, 3.0, 1e9)
"""Of hosts that were started just now, a moment ago or decades ago."""
LONG_S = 60.0
"""No test here takes as long."""


@pytest.fixture(params=UPTIMES_S, ids="up-{:.0f}-s".format)
def clock(request: pytest.FixtureRequest) -> VirtualClock:
    return VirtualClock(request.param)


def of(wire: Wire, read: Callable[[], T]) -> T:
    """Read while the service's loop runs: some of it asks the loop for the time."""

    async def now() -> T:
        return read()

    return wire.run(now())


def test_a_replica_is_ready_and_leads_from_its_first_beat_on(clock: VirtualClock) -> None:
    with serving(SharedStore(), clock=clock) as wire:
        log, unheard = wire.services.log, Presence(wire.services.store)
        assert wire.get("/readyz").status_code == 200
        assert of(wire, lambda: log.presence.leads)
        assert not of(wire, lambda: unheard.leads)
        lag_seconds = of(wire, lambda: log.lag_seconds)
        assert lag_seconds is not None
        assert 0 <= lag_seconds < LONG_S
        wire.teach()
        seconds = {name: value for name, value in wire.metrics().items() if "_seconds_sum" in name}
        assert len(seconds) > 3
        assert all(0 <= value < LONG_S for value in seconds.values()), seconds


def test_a_decision_waits_for_a_log_that_is_stuck_only_so_long(clock: VirtualClock) -> None:
    store = SlowDisk()
    with serving(store, select_log_seconds=0.05, clock=clock) as wire:
        assert wire.select()["logged"]
        store.free.clear()
        assert not wire.select()["logged"]
        store.free.set()


def test_changed_keys_are_read_again_and_rates_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    monkeypatch.setattr("service.security.access.LOOK_SECONDS", 0.05)
    keys = Keys(tmp_path / "keys.json")
    keys.add("slow", "admin", rate="2/hour")
    with serving(keys=keys.path, clock=clock) as wire:
        asked = [wire.get("/experiments", headers=keys.headers("slow")) for _ in range(3)]
        assert [answer.status_code for answer in asked] == [200, 200, 429]
        keys.add("new", "admin")
        seen = keys.headers("new")
        wire.until(lambda: wire.get("/experiments", headers=seen).status_code == 200)


def test_of_the_first_contexts_each_is_a_sample(wire: Wire) -> None:
    """They come faster than samples are wanted, but no block of them has shown that yet."""
    drift, state = Drift(Random(1)), wire.services.log.replicas.by_name["shop"].state
    for _ in range(10):
        drift.decided(state, np.zeros(state.schema.context.width))
    assert drift._contexts["shop"].count == 10


def test_progress_is_told_at_once_and_then_now_and_then(clock: VirtualClock) -> None:
    said: list[str] = []
    progress = Progress(said.append, clock)
    for line in ("first", "second"):
        progress.tell(line)
    Progress(said.append).share("read", 1, 4)
    assert said == ["first", f"read: {'█' * 6}{'░' * 18} 25% of 4"]


def test_progress_is_told_in_numbers_as_rarely(clock: VirtualClock) -> None:
    """And a log that grew while it was read has more than was expected."""
    told: list[tuple[str, int, int]] = []
    progress = Progress(clock=clock, count=lambda *share: told.append(share))
    progress.tell("a line for people")
    progress.share("read", 1, 4)
    progress.share("read", 2, 4)
    clock.skip(1.0)
    progress.share("read", 5, 4)
    assert told == [("read", 1, 4), ("read", 5, 5)]
