"""Every store there is, one after another; Redis is a real server, started here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.support.redis_server import RedisServer, redis_server
from service.log.stores.memory import MemoryStore
from tests.support.stores import Backend, stores_at


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        store = MemoryStore()
        return Backend(lambda: store)
    if request.param == "sqlite":
        return stores_at(f"sqlite:///{tmp_path}/forage.db")
    server: RedisServer = request.getfixturevalue("shared_server")
    server.command("FLUSHALL")
    return stores_at(server.url)
