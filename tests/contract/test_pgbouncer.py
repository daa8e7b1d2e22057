"""The store on PostgreSQL behind PgBouncer in transaction mode: no state of a session is left."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from service.log.stores.base import Append, Appended
from service.log.stores.postgres import POSTGRES_POLL_S, PostgresStore
from tests.support.pgbouncer import POOL, installed, pgbouncer
from tests.support.postgres_server import PostgresSchema
from tests.support.stores import decision, event

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(installed() is None, reason="pgbouncer is not installed"),
]

ROUNDS = 3 * POOL


@pytest.fixture(scope="module")
def pooled(schemas: list[PostgresSchema]) -> Iterator[str]:
    with pgbouncer(schemas[0].name) as url:
        yield url


@pytest.fixture
def url(pooled: str, schema: PostgresSchema) -> str:
    """The URL through PgBouncer of a store that holds nothing."""
    del schema
    return pooled


async def opened(url: str, listen: str | None = None) -> PostgresStore:
    store = PostgresStore(url, listen=listen)
    await store.open()
    return store


def sessions(url: str, query: str) -> list[object]:
    """What this query finds in the sessions that clients of PgBouncer share."""
    clients = [psycopg.connect(url, prepare_threshold=None) for _ in range(POOL)]
    try:
        return [client.execute(query.encode()).fetchone() for client in clients]
    finally:
        for client in clients:
            client.close()


def test_commits_of_several_services_keep_their_order_and_leave_no_state(url: str) -> None:
    async def scenario() -> None:
        stores = [await opened(url) for _ in range(3)]
        for number in range(ROUNDS):
            results = await asyncio.gather(
                *(
                    store.commit([event(f"{number}-{place}"), decision(f"d{number}-{place}")])
                    for place, store in enumerate(stores)
                )
            )
            assert all(isinstance(first, Appended) for first, _ in results)
        records = await stores[0].read("zoo", 0, 100)
        assert [each.position for each in records] == list(range(1, 3 * ROUNDS + 1))
        rows = await stores[1].decisions("zoo", 0, 100)
        assert [row.number for row in rows] == list(range(1, 3 * ROUNDS + 1))
        described = await stores[2].describe("zoo", whole=True)
        assert (described.position, described.rows) == (3 * ROUNDS, 3 * ROUNDS)
        await stores[0].wait({"zoo": described.position}, 0.01)
        listener = stores[0]._listener
        assert listener is not None
        async with asyncio.timeout(30):
            await listener  # there is nothing to hear
        await stores[0].scrub()
        for store in stores:
            await store.close()

    asyncio.run(scenario())
    assert sessions(url, "SHOW enable_seqscan") == [("on",)] * POOL
    assert sessions(url, "SELECT count(*) FROM pg_prepared_statements") == [(0,)] * POOL
    assert sessions(url, "SELECT count(*) FROM pg_listening_channels()") == [(0,)] * POOL


@pytest.mark.parametrize("around", [False, True])
def test_a_service_hears_of_a_commit_by_asking_or_around_the_pooler(
    url: str, schema: PostgresSchema, around: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around it, it asks so seldom that only a notice can tell it in time."""
    seldom = 600.0 if around else POSTGRES_POLL_S
    monkeypatch.setattr("service.log.stores.postgres.POSTGRES_POLL_S", seldom)

    async def scenario() -> None:
        follower = await opened(url, schema.url if around else None)
        writer = await opened(url)
        await writer.commit([Append("zoo", b"first", {})])
        waiting = asyncio.create_task(follower.wait({"zoo": 1}, 60.0))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await writer.commit([Append("zoo", b"second", {})])
        async with asyncio.timeout(30):
            await waiting
        assert len(await follower.read("zoo", 1, 10)) == 1
        await follower.close()
        await writer.close()

    asyncio.run(scenario())
