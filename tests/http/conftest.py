"""A service of the shop (shop.toml) for each test, in memory and in this process."""

from collections.abc import Iterator

import pytest

from tests.support.service import Wire, serving
from tests.support.uptime import UPTIMES_S, up_for
from tests.support.wall import Wall, wall_clock


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire


@pytest.fixture(params=UPTIMES_S, ids=lambda seconds: f"up-{seconds:.0f}-s")
def uptime(request: pytest.FixtureRequest) -> Iterator[float]:
    """Seconds since the boot of the host, as the clocks of this process have it."""
    with up_for(request.param):
        yield request.param


@pytest.fixture
def wall() -> Iterator[Wall]:
    """The wall clock of the services that a test then starts in this process."""
    with wall_clock() as wall:
        yield wall
