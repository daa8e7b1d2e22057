"""Every store there is, one after another; Redis is a real server."""

from pathlib import Path

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.redis_server import RedisServer
from tests.support.stores import Backend, stores_at


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        store = MemoryStore()
        return Backend(lambda: store)
    if request.param == "sqlite":
        return stores_at(f"sqlite:///{tmp_path}/forage.db")
    server: RedisServer = request.getfixturevalue("redis")
    return stores_at(server.url)
