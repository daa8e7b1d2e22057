"""An audit of what a service wrote, read back from every store there is."""

import asyncio

from service.app import assemble
from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.log.stores import Store
from service.offline.audit import Audit
from service.settings import Settings
from service.state.decisions import decode_decision
from tests.support.stores import Backend
from tests.unit.folding import shop


async def serve(store: Store) -> None:
    """Eight decisions, six of them rewarded, while a policy learns."""
    await store.open()
    services = assemble(Settings(store="memory://"), store, [bytes(32)])
    await services.log.open()
    definition = shop(lints={"kind": "lints", "draws": 16})
    await services.admin.define("shop", Definition.model_validate(definition), "")
    for number in range(8):
        answer = await services.selector.select(SelectRequest({"pet": "cat"}, top_k=1 + number % 2))
        if number > 1:
            rewards = {arm.arm: 1.0 for arm in answer.decision.shown}
            await services.settlements.reward(RewardRequest(answer.token, rewards=rewards))
    await services.log.close()
    await store.close()


def test_what_a_service_wrote_is_clean_and_every_row_is_named(backend: Backend) -> None:
    asyncio.run(serve(backend.make()))

    async def scenario(store: Store) -> None:
        found = await Audit(store, "shop").run()
        assert found.kept == []
        assert (found.decisions, found.events, found.clean) == (8, 7, True)
        rows = await store.decisions("shop", 0, 10)
        assert [row.id for row in rows] == [decode_decision(row.payload).id for row in rows]

    backend.run(scenario)
