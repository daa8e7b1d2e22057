"""A database that a test may change, and a process that it may not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.process import put_back


@pytest.fixture
def db(folder: Path) -> Iterator[sqlite3.Connection]:
    """Of the module's `folder`."""
    with closing(sqlite3.connect(folder / "forage.db", isolation_level=None)) as db:
        yield db


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Commands that run in this process leave it as it was."""
    with put_back():
        yield


def pytest_sessionfinish() -> None:
    warm.stop()
