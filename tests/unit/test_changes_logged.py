"""A detected change waits for a log that cannot be written."""

import pytest

from service.errors import StoreUnavailable
from service.log.background import Background
from service.log.clock import LogClock
from service.log.live import Live
from service.log.observers import Changes
from service.log.stores.base import Append, Known
from service.log.writer import Writer
from service.observability.telemetry import Telemetry
from service.state.events import AnyEvent, ChangeDetected
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.unit.test_log_clock import NOON, Host


def test_it_is_dated_anew_once_a_clock_that_the_store_refused_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one event would take log time, and every replica, three hours ahead."""
    host, logged = Host(NOON + 10_800.0), list[float]()

    class Refusing(Writer):
        def __init__(self) -> None: ...

        async def append(self, entry: Append, event: AnyEvent) -> Known:
            logged.append(event.at)
            if len(logged) == 1:
                host.wall, host.steady = NOON, 1.0
                raise StoreUnavailable("the clocks differ")
            return Known({})

    monkeypatch.setattr("service.log.observers.RETRY_SECONDS", 0.0)
    clock, live = LogClock(host), Live(State("shop"))
    changes = Changes(Refusing(), Background(), Telemetry(), clock)
    event = ChangeDetected(
        at=clock.now(live.state),
        policy="p",
        born=1,
        number=1,
        stratum="all",
        columns=[],
        since=1,
        schema_version=1,
    )
    run_virtual(changes._log(live, event, "change/p/1/1"))
    assert logged == [NOON + 10_800.0, pytest.approx(NOON)]
