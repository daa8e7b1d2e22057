"""Redis is set otherwise while it is used: the service sees it, says it, and does what follows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.log import journal
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import Patience
from tests.support.redis_server import RedisServer, redis_server
from tests.support.service import Wire, serving

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def wire(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(journal, "REVIEW_SECONDS", 0.02)
    store = RedisStore(server.url, patience=Patience(connect_s=30.0, reply_s=30.0))
    with serving(store) as wire:
        yield wire


def durability(wire: Wire) -> str:
    found: str = wire.get("/healthz").json()["durability"]
    return found


def test_durability_says_what_holds_now(
    wire: Wire, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert "survives kill -9 and power loss" in durability(wire)
    server.command("CONFIG", "SET", "appendonly", "no")
    wire.until(lambda: "is lost when Redis stops" in durability(wire))
    said = "the store was set otherwise: An acknowledged write is lost when"
    wire.until(lambda: said in caplog.text)
    assert wire.metrics()["forage_durability_changes_total"] == 1
    server.command("CONFIG", "SET", "appendonly", "yes")
    wire.until(lambda: "survives kill -9 and power loss" in durability(wire))


def test_a_redis_that_may_evict_is_not_written_until_it_may_not(
    wire: Wire, server: RedisServer
) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    wire.until(lambda: wire.get("/healthz").json()["status"] == "degraded")
    assert wire.select()["logged"] is False
    wire.sleep(2.5 * journal.RETRY_SECONDS)
    assert wire.get("/readyz").status_code == 503
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    wire.until(lambda: wire.get("/readyz").status_code == 200)
    assert wire.select()["logged"] is True
