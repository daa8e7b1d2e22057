"""A database that a test may change."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture
def db(folder: Path) -> Iterator[sqlite3.Connection]:
    """Of the module's `folder`."""
    with closing(sqlite3.connect(folder / "forage.db", isolation_level=None)) as db:
        yield db
