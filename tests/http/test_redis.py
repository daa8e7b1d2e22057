"""A service on a real Redis: its append-only file is cut, its settings change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from service.log import log
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import RedisTimeouts
from service.offline.audit import audit_store
from tests.http.test_log_that_lost_events import LOSSES
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import UNTIL_S, Wire, expect_problem, serving

pytestmark = pytest.mark.process


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


# -- lost events -----------------------------------------------------------------------------------


@contextmanager
def replica(redis: RedisServer, **settings: Any) -> Iterator[Wire]:
    with serving(None, store=redis.url, **settings) as wire:
        yield wire


def size(folder: Path) -> int:
    return next(folder.glob("appendonlydir/*.incr.aof")).stat().st_size


def cut(redis: RedisServer, folder: Path, size: int) -> None:
    """The server comes back as it was when its file had this size."""
    redis.kill()
    with next(folder.glob("appendonlydir/*.incr.aof")).open("r+b") as file:
        file.truncate(size)
    redis.start()


def says_a_loss(wire: Wire) -> bool:
    return wire.get("/readyz").status_code == 200 and wire.metrics().get(LOSSES) == 1


def until(true: Callable[[Wire], bool], *wires: Wire) -> None:
    """Each works only while it is asked: let time pass for all, in turns."""
    deadline = monotonic() + UNTIL_S
    while not all(map(true, wires)):
        assert monotonic() < deadline
        for wire in wires:
            wire.sleep(0.02)


def test_replicas_tell_what_redis_lost_and_agree_again(redis: RedisServer, tmp_path: Path) -> None:
    """The replicas before left their snapshots in Redis; those of now have taught some."""
    with replica(redis) as first:
        first.teach(5)
    with replica(redis) as first, replica(redis) as second:
        kept = size(tmp_path)
        first.teach(2)
        second.teach(3)
        assert second.rewards() == 10
        cut(redis, tmp_path, kept)
        until(says_a_loss, first, second)
        until(lambda wire: wire.rewards() == 5, first, second)
        first.teach()
        until(lambda wire: wire.rewards() == 6, first, second)
        lives = [wire.services.log.replicas.by_name["shop"] for wire in (first, second)]
        until(lambda _: all(live.state.lost_to for live in lives), first)
    with replica(redis) as third:
        assert third.rewards() == 6
        [report] = third.run(audit_store(redis.url))
        assert report.losses >= 1
        assert report.orphaned < 5  # at positions that are lost
        assert report.clean


def test_a_tail_that_redis_lost_while_nobody_was_there_is_told_by_a_token(
    redis: RedisServer, tmp_path: Path
) -> None:
    """Snapshot and tail are gone together, and the token of a lost decision is honoured."""
    with replica(redis) as wire:
        wire.teach(3)
        kept = size(tmp_path)
        wire.teach(2)
        decision = wire.select(policy="linucb")
    cut(redis, tmp_path, kept)
    with replica(redis) as wire:
        assert (wire.metrics()[LOSSES], wire.rewards()) == (0, 3)
        wire.reward(decision, 1.0)
        assert (wire.metrics()[LOSSES], wire.rewards()) == (1, 4)


# -- settings that change --------------------------------------------------------------------------


@pytest.fixture
def wire(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(log, "REVIEW_SECONDS", 0.02)
    store = RedisStore(redis.url, patience=RedisTimeouts(connect_s=30.0, reply_s=30.0))
    with serving(store) as wire:
        yield wire


def test_durability_says_what_holds_now(
    wire: Wire, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def durability() -> str:
        found: str = wire.get("/healthz").json()["durability"]
        return found

    assert "survives kill -9 and power loss" in durability()
    redis.command("CONFIG", "SET", "appendonly", "no")
    wire.until(lambda: "is lost when Redis stops" in durability())
    said = "durability settings changed: An acknowledged write is lost when"
    wire.until(lambda: said in caplog.text)
    assert wire.metrics()["forage_durability_changes_total"] == 1
    redis.command("CONFIG", "SET", "appendonly", "yes")
    wire.until(lambda: "survives kill -9 and power loss" in durability())


def test_a_redis_that_may_evict_is_not_written_until_it_may_not(
    wire: Wire, redis: RedisServer
) -> None:
    redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    wire.until(lambda: wire.get("/healthz").json()["status"] == "degraded")
    assert wire.select()["logged"] is False
    wire.sleep(2.5 * log.RETRY_SECONDS)
    assert wire.get("/readyz").status_code == 503
    redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    wire.until(lambda: wire.get("/readyz").status_code == 200)
    assert wire.select()["logged"] is True


def test_what_one_replica_defines_another_uses_at_once(redis: RedisServer) -> None:
    """An arm, a policy, other features: each is in the log before a request that needs it."""
    with replica(redis) as first, replica(redis) as second:
        toy = {"features": {"category": "toy"}}
        for number in range(5):
            arm, policy = f"new{number}", f"policy{number}"
            assert first.put(f"/experiments/shop/arms/{arm}", toy).status_code == 200
            assert second.select(arms=[arm])["ranking"][0]["arm"] == arm
            policies = {**first.definition()["policies"], policy: {"kind": "random"}}
            first.redefine(policies=policies)
            assert second.select(policy=policy)["policy"] == policy
            assert second.get(f"/experiments/shop/policies/{policy}").status_code == 200
            assert second.delete(f"/experiments/shop/arms/{arm}").status_code == 204
            expect_problem(first.get(f"/experiments/shop/arms/{arm}"), 404)
        features = first.definition()["features"]
        features["context"]["outdoor"] = {"type": "boolean"}
        first.redefine(features=features)
        assert second.select(context={"persona": "cat", "outdoor": True})["policy"]
        expect_problem(second.post("/select", {"context": {"persona": "cat"}}), 422)


def test_replicas_tell_a_deleted_experiment_from_the_one_that_follows_it(
    redis: RedisServer,
) -> None:
    """The second replica knows the first experiment alone, and then no more than its deletion: it
    reads the log to its end before it says whether a decision counts."""
    with replica(redis) as first, replica(redis) as second:
        old, definition = first.select(policy="linucb"), first.definition()
        first.delete("/experiments/shop")
        first.put("/experiments/shop", definition)
        assert second.reward(first.select(policy="linucb"), 1.0) == "accepted"
        second.refuse(410, old)
        assert second.policy("linucb")["decisions"] == second.rewards() == 1
        first.delete("/experiments/shop")
        expect_problem(second.get("/experiments/shop"), 404)
        first.put("/experiments/shop", definition)
        assert second.reward(first.select(policy="linucb"), 1.0) == "accepted"
