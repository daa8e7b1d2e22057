"""Every store there is, one after another; Redis is a real server, and two processes write one file
of SQLite by turns. PostgreSQL is among them where a server is found."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.postgres_server import PostgresSchema, found, postgres_schema
from tests.support.redis_server import RedisServer
from tests.support.stores import Backend, stores_at
from tests.support.two_processes import TwoProcesses, other_process

KINDS = ("memory", "sqlite", "workers", "redis", *(["postgres"] if found() else []))

collect_ignore = [] if found() else ["test_postgres_store.py", "test_pgbouncer.py"]


@pytest.fixture(scope="session")
def schemas() -> Iterator[list[PostgresSchema]]:
    with postgres_schema() as first, postgres_schema() as second:
        yield [first, second]


@pytest.fixture(scope="session")
def sibling() -> Iterator[Path]:
    """Socket of another process that opens stores."""
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket may not be long
        socket = Path(folder) / "sibling"
        with other_process(socket, os.environ):
            yield socket


def _empty(kind: str, number: int, request: pytest.FixtureRequest) -> Backend:
    """A store that holds nothing; two of one kind differ in their number."""
    if kind == "memory":
        store = MemoryStore()
        return Backend(lambda: store)
    if kind == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return stores_at(f"sqlite:///{folder}/forage{number}.db")
    if kind == "workers":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/forage{number}.db"
        sibling: Path = request.getfixturevalue("sibling")
        return Backend(lambda: TwoProcesses(url, sibling))
    if kind == "postgres":
        schemas: list[PostgresSchema] = request.getfixturevalue("schemas")
        return stores_at(schemas[number].empty().url)
    server: RedisServer = request.getfixturevalue("redis")
    return stores_at(f"{server.url[:-1]}{number}")


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return _empty(request.param, 0, request)


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Backend:
    return _empty(request.param, 1, request)


@pytest.fixture
def schema(schemas: list[PostgresSchema]) -> PostgresSchema:
    """Of a store on PostgreSQL that holds nothing."""
    return schemas[0].empty()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the database of `over_sqlite`."""
    return tmp_path / "forage.db"
