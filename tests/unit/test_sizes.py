"""Who measures the log, and what a fault leaves."""

from unittest.mock import AsyncMock

import pytest

from service.errors import StoreUnavailable
from service.log.log import Log
from service.log.stores.memory import MemoryStore
from tests.support.service import Wire, serving


def sizes(wire: Wire) -> dict[str, float]:
    lines = [line for line in wire.get("/metrics").text.splitlines() if line[:1] != "#"]
    found = dict(line.rsplit(" ", 1) for line in lines)
    return {name: float(found[name]) for name in found if name.startswith(("forage_log_b", ROWS))}


ROWS = 'forage_log_rows{experiment="shop"}'
BYTES = 'forage_log_bytes{experiment="shop"}'


def test_rows_and_bytes_are_those_of_the_last_measurement() -> None:
    with serving() as wire:
        wire.run(wire.services.sizes.measure())
        before = sizes(wire)
        for _ in range(3):
            wire.select()
        assert sizes(wire) == before
        wire.run(wire.services.sizes.measure())
        after = sizes(wire)
        assert (before[ROWS], after[ROWS]) == (0, 3)
        assert after[BYTES] > before[BYTES] > 0


def test_a_store_that_does_not_answer_leaves_no_stale_size(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A forecast over one would see no growth."""
    with serving() as wire:
        wire.run(wire.services.sizes.measure())
        assert sizes(wire)
        down = AsyncMock(side_effect=StoreUnavailable("down"))
        monkeypatch.setattr(MemoryStore, "measure", down)
        for _ in range(3):
            wire.run(wire.services.sizes.measure())
        assert sizes(wire) == {}
        assert caplog.text.count("the size of the log is unknown: down") == 1


def test_a_process_that_does_not_lead_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as wire:
        log: Log = wire.services.log
        wire.run(wire.services.sizes.measure())
        monkeypatch.setattr(type(log.presence), "leads", False)
        wire.run(wire.services.sizes.measure())
        assert sizes(wire) == {}
