"""A service of the shop (shop.toml) for each test, in memory and in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.clock import VirtualClock
from tests.support.keys import Keys, standard
from tests.support.postgres_server import found
from tests.support.service import Wire, serving

collect_ignore = [] if found() else ["test_postgres.py"]


@pytest.fixture
def clock() -> VirtualClock:
    """Of the services that a test starts, one after the other or together."""
    return VirtualClock()


@pytest.fixture
def wire(clock: VirtualClock) -> Iterator[Wire]:
    with serving(clock=clock) as wire:
        yield wire


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def signed(store: MemoryStore, tmp_path: Path) -> Iterator[Wire]:
    """The service on this store, asked with the key of the shop team."""
    keys = Keys(tmp_path / "keys.json")
    keys.add("shop team", "admin", "select", "reward")
    with serving(store, keys=keys.path) as wire:
        wire.client.headers.update(keys.headers("shop team"))
        yield wire


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A key of each kind; no test changes them."""
    return standard(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture
def guarded(keys: Keys) -> Iterator[Wire]:
    """The service with these keys."""
    with serving(keys=keys.path) as wire:
        yield wire
