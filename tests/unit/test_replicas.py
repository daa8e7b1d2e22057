"""Replicas of one log: each folds what the others appended, before its own and in the log's
order."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from service.definition.experiment import Definition
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.serving.settlement import RewardRequest
from service.settings import Settings
from tests.support.clock import run_virtual
from tests.support.service import virtual_services
from tests.unit.folding import shop


class Shared(MemoryStore):
    """It tells nobody that others appended: a replica learns of it by its own commits alone."""

    shared = True

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def replica(store: MemoryStore) -> AsyncIterator[Services]:
    services = virtual_services(Settings(store="memory://"), store)
    await services.journal.open()
    try:
        yield services
    finally:
        await services.journal.close()


async def rewarded(services: Services) -> None:
    question = SelectRequest({"pet": "cat"}, experiment="shop", policy="linucb")
    token = (await services.engine.select(question)).token
    assert await services.settlements.reward(RewardRequest(token, 1.0)) == "accepted"


def test_a_replica_folds_what_another_appended_before_its_own_event() -> None:
    async def run() -> list[int]:
        store = Shared()
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(replica(store))
            linucb = {"kind": "linucb", "features": ["pet x kind"]}
            await one.admin.define("shop", Definition.model_validate(shop(linucb=linucb)))
            other = await stack.enter_async_context(replica(store))
            for services in (one, one, other):
                await rewarded(services)
            return [
                each.journal.follower.live["shop"].state.learners["linucb"].rewards
                for each in (one, other)
            ]

    assert run_virtual(run()) == [2, 3]
