"""Recovery of a log that is longer than what lies between two snapshots."""

import asyncio
import logging

import pytest

import service.log.replay
from service.log.clock import LogClock
from service.log.commit_gate import CommitGate
from service.log.journal import Journal
from service.log.stores.base import Append, Record
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.settings import Settings
from service.state.events import encode_event
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.unit.folding import Log, shop


class UnhurriedStore(MemoryStore):
    """Reading takes a while, as it does from a disk: others run meanwhile."""

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        return await super().read(experiment, after, limit)


def test_a_snapshot_that_falls_due_while_a_log_is_recovered_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two readers would fold each event twice, or find that the log had lost some."""
    log = Log()
    log.define(shop(linucb={"kind": "linucb"}))
    for _ in range(19):
        log.settle("linucb", {"toy1": 1.0})
    monkeypatch.setattr(service.log.replay, "PAGE", 3)

    async def run() -> None:
        store = UnhurriedStore()
        await store.commit(
            [
                Append("shop", encode_event(event), {str(number): ""})
                for number, (event, _) in enumerate(log.records)
            ]
        )
        settings = Settings(store="memory://", snapshot_every_events=5)
        journal = Journal(store, settings, Telemetry(), CommitGate(), LogClock())
        with caplog.at_level(logging.ERROR):
            await journal.open()
            async with asyncio.timeout(30):
                while not await store.snapshots("shop"):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        state = journal.follower.state("shop")
        assert state is not None
        assert state.snapshot() == log.state.snapshot()
        (saved,) = await store.snapshots("shop")
        assert State.restore(saved).snapshot() == log.state.snapshot()
        await journal.close()

    run_virtual(run())
    assert not caplog.records
