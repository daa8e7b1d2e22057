"""Clocks that are set while rewards are accepted: each counts once, whatever they say."""

import pytest

from service.log.stores.memory import MemoryStore
from service.log.stores.redis import RedisStore
from tests.support.clock import SetClock, VirtualClock
from tests.support.redis_server import RedisServer
from tests.support.service import Json, Wire, expect_problem, serving

HOUR_S = 3_600.0
REWARD = {"wait_seconds": 60.0, "accept_seconds": 2 * HOUR_S}
VISITS = 5


def taught(wire: Wire) -> list[Json]:
    wire.redefine(reward=REWARD)
    decisions = [wire.select(policy="linucb") for _ in range(VISITS)]
    for decision in decisions:
        assert wire.reward(decision, 1.0) == "accepted"
    return decisions


def trim(wire: Wire) -> None:
    wire.run(wire.services.retention.trim_all())


def count(wire: Wire) -> int:
    settled: int = wire.policy("linucb")["rewards"]
    return settled


@pytest.mark.parametrize("retention_days", [1.0, None])
def test_a_clock_that_jumps_ahead_and_back_lets_no_reward_count_again(
    clock: VirtualClock, retention_days: float | None
) -> None:
    """55 hours: a retention of a day deletes what is old meanwhile."""
    with serving(MemoryStore(), retention_days=retention_days, clock=clock) as wire:
        decisions = taught(wire)
        clock.jump(55 * HOUR_S)
        trim(wire)
        clock.jump(-55 * HOUR_S)
        assert {wire.reward(each, 1.0) for each in decisions} == {"duplicate"}
        assert count(wire) == VISITS


def test_a_process_that_starts_ahead_lets_no_reward_count_again_at_the_next(
    clock: VirtualClock,
) -> None:
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        decisions = taught(wire)
    clock.jump(55 * HOUR_S)
    with serving(store, retention_days=1.0, clock=clock) as wire:
        trim(wire)
    clock.jump(-55 * HOUR_S)
    with serving(store, clock=clock) as wire:
        assert {wire.reward(each, 1.0) for each in decisions} == {"duplicate"}
        assert count(wire) == VISITS


def test_what_was_forgotten_by_the_log_s_time_is_refused_after_the_clock_went_back(
    clock: VirtualClock,
) -> None:
    """An event of the time ahead is in the log: marks go by it, and tokens expire by it."""
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        decisions = taught(wire)
    clock.jump(55 * HOUR_S)
    with serving(store, retention_days=1.0, clock=clock) as wire:
        taught(wire)
        trim(wire)
        assert not any(own.startswith(decisions[0]["id"]) for own in _marks(store))
    clock.jump(-55 * HOUR_S)
    with serving(store, clock=clock) as wire:
        for each in decisions:
            expect_problem(wire.post("/reward", _reward(each)), 410)
        assert count(wire) == 2 * VISITS


def test_marks_are_forgotten_without_a_retention(clock: VirtualClock) -> None:
    store = MemoryStore()
    with serving(store, clock=clock) as wire:
        decisions = taught(wire)
        clock.skip(3 * HOUR_S)
        taught(wire)
        trim(wire)
        assert not any(own.startswith(decisions[0]["id"]) for own in _marks(store))
        assert len(store._experiments["shop"].decisions) == 2 * VISITS


def _marks(store: MemoryStore) -> list[str]:
    return list(store._experiments["shop"].marks)


def test_a_service_whose_clock_differs_from_that_of_redis_takes_no_reward(
    redis: RedisServer,
) -> None:
    """It decides from memory, says that it is not ready, and goes on once the clocks agree."""
    clock = SetClock()
    with serving(RedisStore(redis.url, clock=clock), clock) as wire:
        decision = wire.select(policy="linucb")
        clock.jump(2.5 * HOUR_S)
        expect_problem(wire.post("/reward", _reward(decision)), 503)
        assert wire.get("/readyz").status_code == 503
        assert wire.select(policy="linucb")["logged"] is False
        wire.until(lambda: wire.metrics()["forage_store_clock_skew_seconds"] > 2 * HOUR_S)
        clock.jump(-2.5 * HOUR_S)
        wire.until(lambda: wire.get("/readyz").status_code == 200)
        assert [wire.reward(decision, 1.0) for _ in range(2)] == ["accepted", "duplicate"]
        assert count(wire) == 1


def _reward(decision: Json) -> Json:
    return {"decision_id": decision["decision_id"], "reward": 1.0}
