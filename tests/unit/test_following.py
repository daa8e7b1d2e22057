"""How a process follows a log that others write."""

from collections.abc import Mapping

from service.log.replicas import Replicas
from service.log.stores.base import Append
from service.log.stores.memory import MemoryStore
from service.state.events import encode_event
from tests.support.clock import run_virtual
from tests.unit.folding import Log, shop


class Waited(MemoryStore):
    """A store that counts how often somebody waits for it."""

    waits = 0

    async def wait(self, positions: Mapping[str, int], seconds: float) -> None:
        self.waits += 1


def test_it_waits_for_events_only_where_the_last_look_found_none() -> None:
    log = Log()
    log.define(shop(linucb={"kind": "linucb"}))
    for _ in range(3):
        log.settle("linucb", {"toy1": 1.0})
    entries = [Append("shop", encode_event(event), {}) for event, _ in log.records]
    store = Waited()

    async def scenario() -> list[tuple[int, int]]:
        await store.commit(entries[:1])
        replicas, seen = Replicas(store), []
        for number in range(1, 7):
            if number < len(entries):
                await store.commit(entries[number : number + 1])
            await replicas.follow(1.0)
            seen.append((store.waits, replicas.states["shop"].position))
        return seen

    assert run_virtual(scenario()) == [(1, 2), (1, 3), (1, 4), (1, 4), (2, 4), (3, 4)]
