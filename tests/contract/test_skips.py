"""Every store: what one service skips, every other reader of the log passes over."""

import asyncio

import pytest

from service.errors import Quarantined
from service.log.replay import SKIPS_PER_QUERY, skip_mark, skipped_positions
from service.log.replicas import Replicas
from service.log.stores import Store
from service.log.stores.base import Append, Appended
from service.offline.audit import Audit
from service.state.events import SCHEMA, Skipped, encode_event
from tests.contract.test_audit import serve
from tests.support.stores import Backend, over_every_store

UNREADABLE = b'{"schema":%d,"event":{"type":"Rewarded","at":null}}' % SCHEMA


def test_a_skip_by_one_service_lifts_the_quarantine_of_every_other(backend: Backend) -> None:
    asyncio.run(serve(backend.make()))

    async def scenario(store: Store) -> None:
        (bad,) = await store.commit([Append("shop", UNREADABLE, {"bad": ""})])
        assert isinstance(bad, Appended)
        other = Replicas(store)
        await other.follow(0)
        with pytest.raises(Quarantined, match=f"position {bad.position} "):
            other.state("shop")
        await other.follow(0)
        assert other.quarantined
        mark = skip_mark(0)
        event = Skipped(at=1.0, position=bad.position, reason="unreadable")
        await store.commit([Append("shop", encode_event(event), {mark: str(bad.position)})])
        await other.follow(0)
        state = other.state("shop")
        assert state is not None
        assert (state.position, state.skips) == (bad.position + 1, [bad.position])
        found = await Audit(store, "shop").run()
        assert (found.kept, found.clean) == ([], True)

    backend.run(scenario)


@over_every_store
async def test_all_skips_are_found_however_many_there_are(store: Store) -> None:
    for count in (0, 1, SKIPS_PER_QUERY, SKIPS_PER_QUERY + 1):
        known = len(await skipped_positions(store, "shop"))
        for number in range(known, count):
            marks = {skip_mark(number): str(10 * number)}
            await store.commit([Append("shop", b"{}", marks)])
        found = await skipped_positions(store, "shop")
        assert found == {10 * number for number in range(count)}
