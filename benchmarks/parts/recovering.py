"""Rows of the log a second when a state is recovered: from events alone, and from a snapshot with
the rest of the events behind it. The start of a whole process is in `benchmarks.recovery`."""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks.medians import Turn, medians_us
from benchmarks.recovery import PAGE, written
from benchmarks.tables import Json, say
from service.app import EXAMPLE
from service.definition.experiment import load_definition
from service.log.follower import Follower
from service.log.stores import Store, open_store
from service.observability.telemetry import Telemetry
from service.state.events import decode_event

TAIL: Final = 0.1  # of the events that come after the snapshot


async def read(store: Store, experiment: str) -> None:
    """Every event, decoded and thrown away."""
    position = 0
    while records := await store.read(experiment, position, PAGE):
        for record in records:
            decode_event(record.payload)
        position = records[-1].position


async def recovered(store: Store, experiment: str, position: int) -> None:
    """A state at the log's end, as a start makes it."""
    state = await Follower(store, Telemetry()).discover(experiment)
    assert state.position == position


async def snapshotted(url: str, experiment: str) -> None:
    """Keep a snapshot of what the log holds so far."""
    store = open_store(url)
    await store.open()
    state = await Follower(store, Telemetry()).discover(experiment)
    await store.save_snapshot(experiment, state.snapshot())
    await store.close()


def measured(rounds: int, events: int) -> Json:
    """Seconds, and events a second of all that the log holds."""
    experiment, _ = load_definition(EXAMPLE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runner = stack.enter_context(asyncio.Runner())
        plain, short = (f"sqlite:///{folder / name}.db" for name in ("plain", "short"))
        say(f"recovery: two logs of {events:,} events")
        runner.run(written(plain, events))
        runner.run(written(short, events - int(TAIL * events)))
        runner.run(snapshotted(short, experiment))
        runner.run(written(short, events))  # those that it has already are left as they are
        stores = {url: open_store(url, readonly=True) for url in (plain, short)}
        for store in stores.values():
            runner.run(store.open())
            stack.callback(runner.run, store.close())

        def turn(work: Any, *arguments: Any) -> Turn:
            def taken() -> float:
                start = perf_counter()
                runner.run(work(*arguments))
                return perf_counter() - start

            return taken

        turns = {
            "read and decoded alone": turn(read, stores[plain], experiment),
            "events alone": turn(recovered, stores[plain], experiment, events + 1),
            "snapshot, a tenth of the events after it": turn(
                recovered, stores[short], experiment, events + 1
            ),
        }
        us = medians_us(turns, rounds, "recovery")
    figures = {
        name: {"seconds": us[name] / 1e6, "events_per_second": events / us[name] * 1e6}
        for name in turns
    }
    return {"events": events, "ways": figures}
