"""Before numpy is imported: one BLAS thread, for the tests and for the processes that they start.

Matrices are small and tests are many: threads that wait for each other make them several times as
slow.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

from tests.support.properties import register_profiles
from tests.support.redis_server import RedisServer, redis_server

gc.disable()  # until all tests are collected: what their files make stays
register_profiles()

HERE = Path(__file__).parent
UNMEASURED = {"chaos", "simulation", "simulator", "statistics"}
"""Folders of tests that run other code than the service's, or its own for long. Which of its lines
are run the other tests show; to measure makes a test take up to twice as long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(HERE).parts[0] in UNMEASURED:
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """As `forage serve` does it: what is there now stays, and young objects are looked at less
    often. Each test that serves makes an application and lets it go: a tenth to a quarter of its
    time went into collections."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def redis_of_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(redis_of_worker: RedisServer) -> RedisServer:
    """A real server that holds nothing. Others use it afterwards: its settings stay as they are."""
    redis_of_worker.command("FLUSHALL")
    return redis_of_worker
