"""A service of the shop (shop.toml) for each test, in memory and in this process."""

from collections.abc import Iterator

import pytest

from tests.support.service import Wire, serving


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        yield wire
