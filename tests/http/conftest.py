"""A service of the shop (shop.toml) for each test, in memory and in this process."""

from collections.abc import Iterator

import pytest

from tests.support.clock import VirtualClock
from tests.support.service import Wire, serving


@pytest.fixture
def clock() -> VirtualClock:
    """Of the services that a test starts, one after the other or together."""
    return VirtualClock()


@pytest.fixture
def wire(clock: VirtualClock) -> Iterator[Wire]:
    with serving(clock=clock) as wire:
        yield wire
