"""A commit of several experiments: one that is held up delays its own answers alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from service.app import Services, assemble
from service.definition.experiment import Definition
from service.log.journal import Journal
from service.log.stores.base import Entry
from service.log.stores.base import Outcome as Stored
from service.log.stores.memory import MemoryStore
from service.observability.telemetry import Telemetry
from service.serving.engine import SelectRequest
from service.serving.settlement import Outcome
from service.settings import Settings
from tests.unit.folding import shop


class Gated(MemoryStore):
    """It tells how many entries each commit had, and commits while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.sizes = asyncio.Event(), list[int]()
        self.gate.set()

    async def commit(self, entries: Sequence[Entry]) -> list[Stored]:
        await self.gate.wait()
        self.sizes.append(len(entries))
        return await super().commit(entries)


def run(scenario: Callable[[Services, Gated], Awaitable[None]]) -> None:
    async def serve() -> None:
        store, settings = Gated(), Settings(store="memory://")
        journal = Journal(store, settings, Telemetry())
        await journal.open()
        services = assemble(settings, journal, [b"a secret of 16 bytes or more"])
        try:
            for name in ("slow", "quick"):
                linucb = {"kind": "linucb", "features": ["pet x kind"]}
                await services.admin.define(name, Definition.model_validate(shop(linucb=linucb)))
            async with asyncio.timeout(10):
                await scenario(services, store)
        finally:
            await journal.close()

    asyncio.run(serve())


async def token(services: Services, experiment: str) -> str:
    question = SelectRequest({"pet": "cat"}, experiment=experiment, policy="linucb")
    return (await services.engine.select(question)).token


def settle(services: Services, decision: str) -> asyncio.Task[str]:
    return asyncio.create_task(services.settlements.reward(Outcome(decision, 1.0)))


async def reward(services: Services, experiment: str) -> asyncio.Task[str]:
    """A reward that is on its way."""
    return settle(services, await token(services, experiment))


def rewards(services: Services, experiment: str) -> int:
    return services.journal.live[experiment].state.learners["linucb"].rewards


def test_a_held_lock_delays_its_own_experiment_alone() -> None:
    """One commit has a reward of each; the next ones go on, too."""

    async def scenario(services: Services, store: Gated) -> None:
        async with services.journal.live["slow"].lock:
            tokens = [await token(services, name) for name in ("slow", "quick")]
            store.gate.clear()
            slow, quick = [settle(services, each) for each in tokens]
            await asyncio.sleep(0.01)
            store.gate.set()
            assert await quick == "accepted"
            assert await (await reward(services, "quick")) == "accepted"
            assert rewards(services, "quick") == 2
            assert not slow.done()
            assert rewards(services, "slow") == 0
        assert await slow == "accepted"
        assert rewards(services, "slow") == 1

    run(scenario)


def test_rewards_of_a_held_experiment_are_folded_in_the_order_of_the_log() -> None:
    async def scenario(services: Services, store: Gated) -> None:
        live = services.journal.live["slow"]
        async with live.lock:
            tasks = [await reward(services, "slow") for _ in range(5)]
            await asyncio.sleep(0.05)  # several commits
            before = live.state.position
            assert not any(task.done() for task in tasks)
        assert [await task for task in tasks] == ["accepted"] * 5
        assert live.state.position == before + 5
        assert (await store.read("slow", live.state.position, 10)) == []

    run(scenario)


def test_close_waits_for_what_is_still_to_be_folded() -> None:
    async def scenario(services: Services, store: Gated) -> None:
        async with services.journal.live["slow"].lock:
            task = await reward(services, "slow")
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(services.journal.close())
            await asyncio.sleep(0.02)
            assert not closing.done()
        await closing
        assert await task == "accepted"
        assert rewards(services, "slow") == 1

    run(scenario)
