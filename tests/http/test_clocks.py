"""Clocks that are set while rewards are accepted: each reward counts once, whatever they say."""

import pytest

from service.log.stores.memory import MemoryStore
from service.log.stores.redis import RedisStore
from tests.support.clock import SetClock, VirtualClock
from tests.support.redis_server import RedisServer
from tests.support.service import Json, Wire, serving

HOUR_S = 3_600.0
VISITS = 5


def taught(wire: Wire) -> list[Json]:
    wire.redefine(reward={"wait_seconds": 60.0, "accept_seconds": 2 * HOUR_S})
    return wire.teach(VISITS)


def marks_of(store: MemoryStore, decision: Json) -> list[str]:
    return [own for own in store._experiments["shop"].marks if own.startswith(decision["id"])]


@pytest.mark.parametrize("retention_days", [1.0, None])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_jumps_ahead_and_back_lets_no_reward_count_again(
    clock: VirtualClock, retention_days: float | None, restarts: bool
) -> None:
    """55 hours: a retention of a day deletes what is old meanwhile."""
    store = MemoryStore()
    with serving(store, retention_days=retention_days, clock=clock) as wire:
        decisions = taught(wire)
        if not restarts:
            clock.jump(55 * HOUR_S)
            wire.trim()
    if restarts:
        clock.jump(55 * HOUR_S)
        with serving(store, retention_days=retention_days, clock=clock) as wire:
            wire.trim()
    clock.jump(-55 * HOUR_S)
    with serving(store, clock=clock) as wire:
        assert {wire.reward(each, 1.0) for each in decisions} == {"duplicate"}
        assert wire.rewards() == VISITS


def test_a_mark_forgotten_by_the_logs_time_refuses_rewards_after_the_clock_went_back(
    clock: VirtualClock,
) -> None:
    """An event of the time ahead is in the log: marks go by it, and tokens expire by it."""
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        decisions = taught(wire)
    clock.jump(55 * HOUR_S)
    with serving(store, retention_days=1.0, clock=clock) as wire:
        taught(wire)
        wire.trim()
        assert not marks_of(store, decisions[0])
    clock.jump(-55 * HOUR_S)
    with serving(store, clock=clock) as wire:
        for each in decisions:
            wire.refuse(410, each)
        assert wire.rewards() == 2 * VISITS


def test_marks_are_forgotten_without_a_retention(clock: VirtualClock) -> None:
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        decisions = taught(wire)
        clock.skip(3 * HOUR_S)
        taught(wire)
        wire.trim()
        assert not marks_of(store, decisions[0])
        assert len(store._experiments["shop"].decisions) == 2 * VISITS


def test_a_service_whose_clock_differs_from_that_of_redis_takes_no_reward(
    redis: RedisServer,
) -> None:
    """It decides from memory, says that it is not ready, and goes on once the clocks agree."""
    clock = SetClock()
    with serving(RedisStore(redis.url, clock=clock), clock) as wire:
        decision = wire.select(policy="linucb")
        clock.jump(2.5 * HOUR_S)
        wire.refuse(503, decision)
        assert wire.get("/readyz").status_code == 503
        assert wire.select(policy="linucb")["logged"] is False
        wire.until(lambda: wire.metrics()["forage_store_clock_skew_seconds"] > 2 * HOUR_S)
        clock.jump(-2.5 * HOUR_S)
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        assert [wire.reward(decision, 1.0) for _ in range(2)] == ["accepted", "duplicate"]
        assert wire.rewards() == 1
