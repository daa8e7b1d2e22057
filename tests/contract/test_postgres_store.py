"""What only the store on PostgreSQL can show. The server is a real one, used by others as well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest import mock
from unittest.mock import ANY
from urllib.parse import quote

import psycopg
import pytest

from service.errors import ConfigurationError, StoreError, StoreUnavailable, UnknownSchema
from service.log.stores import Store, open_store, postgres_connection
from service.log.stores.base import Append, Appended, Blob, Entry, Erasure, Mark, MarkConflict
from service.log.stores.postgres import PostgresStore
from service.log.stores.postgres_connection import Connection, PostgresTimeouts, our_errors
from service.offline.doctor import Check, examine
from service.settings import Settings
from tests.support.clock import SetClock
from tests.support.postgres_server import PostgresSchema, postgres_schema
from tests.support.scenarios import Test, as_test
from tests.support.stores import Backend, Scenario, decision, event, expect_dense, stores_at

PATIENT = PostgresTimeouts(connect_s=60.0, reply_s=60.0)
"""A busy machine takes its time; what fails at once does so well before."""

HASTY = replace(PATIENT, reply_s=0.2)


def run(schema: PostgresSchema, scenario: Scenario) -> None:
    Backend(lambda: PostgresStore(schema.url, patience=PATIENT)).run(scenario)


def over_postgres(scenario: Scenario) -> Test:
    return as_test(scenario, run, "schema")


async def no_work(store: Store) -> None:
    """Open the store and close it."""


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def locked(schema: PostgresSchema) -> AsyncIterator[None]:
    """Another session holds every experiment."""
    async with await psycopg.AsyncConnection.connect(schema.url, application_name="other") as db:
        await db.execute("SELECT 1 FROM forage_experiments FOR UPDATE")
        yield


async def until_waiting(schema: PostgresSchema) -> None:
    """A session of the store waits for a lock."""
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    )
    while not await asyncio.to_thread(schema.run, query, schema.name):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# -- several services ------------------------------------------------------------------------------


@over_postgres
async def test_two_services_share_one_log(one: Store, schema: PostgresSchema) -> None:
    """Both want the same 200 identities in two experiments, which they name in opposite order: each
    is taken once, the loser is told by whom, and none waits for ever. One that waits hears of the
    other."""
    async with opened(PostgresStore(schema.url, patience=PATIENT)) as other:
        assert one.shared
        assert await one.secret() == await other.secret()

        async def write(
            store: Store, value: str, names: list[str]
        ) -> list[Appended | MarkConflict]:
            outcomes: list[Appended | MarkConflict] = []
            for n in range(0, 200, 10):
                identities = map(str, range(n, n + 10))
                batch = [Append(name, b"", {i: value}) for i in identities for name in names]
                found = await store.commit(batch)
                outcomes += found[names.index("zoo") :: 2]  # type: ignore[arg-type]
            return outcomes

        waiting = asyncio.create_task(other.wait({"zoo": 0, "none": 0}, seconds=3_600))
        ours, theirs = await asyncio.gather(
            write(one, "ours", ["zoo", "shop"]), write(other, "theirs", ["shop", "zoo"])
        )
        await waiting
        assert await other.experiments() == ["shop", "zoo"]
        for n, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            if isinstance(our, Appended):
                assert their == MarkConflict({str(n): Mark("ours", our.position)})
            else:
                assert isinstance(their, Appended)
                assert our == MarkConflict({str(n): Mark("theirs", their.position)})
        await expect_dense(other, 200)


def test_stores_that_open_together_create_the_tables_once() -> None:
    async def open_all(url: str) -> None:
        stores = [PostgresStore(url, patience=PATIENT) for _ in range(4)]
        await asyncio.gather(*(store.open() for store in stores))
        secrets = await asyncio.gather(*(store.secret() for store in stores))
        assert len({*secrets}) == 1
        for store in stores:
            await store.close()

    with postgres_schema() as fresh:
        asyncio.run(open_all(fresh.url))


@over_postgres
async def test_rows_of_two_services_are_numbered_in_the_order_a_reader_sees_them(
    one: Store, schema: PostgresSchema
) -> None:
    """A reader that goes on from the last number it saw misses none."""
    seen: list[str] = []

    async def write(store: Store, name: str) -> None:
        for n in range(40):
            await store.commit([decision(f"{name}{n}")])

    async def read(store: Store, writers: asyncio.Task[object]) -> None:
        after = 0
        while not writers.done() or await store.decisions("zoo", after, 1):
            for row in await store.decisions("zoo", after, 7):
                seen.append(row.id)
                after = row.number

    async with (
        opened(PostgresStore(schema.url, patience=PATIENT)) as other,
        opened(PostgresStore(schema.url, patience=PATIENT, readonly=True)) as reader,
    ):
        writers = asyncio.ensure_future(asyncio.gather(write(one, "x"), write(other, "y")))
        await read(reader, writers)
        await writers
    assert sorted(seen) == sorted(f"{name}{n}" for name in "xy" for n in range(40))


# -- connections -----------------------------------------------------------------------------------


@over_postgres
async def test_connections_that_the_server_ends_are_replaced(
    store: Store, schema: PostgresSchema
) -> None:
    """Idle ones cost nothing, and one that waits hears again."""
    await store.commit([event("a")])
    waiting = asyncio.create_task(store.wait({"zoo": 1}, seconds=3_600))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(schema.end_connections)
    while True:
        try:
            assert await store.commit([event("a")]) == [MarkConflict({"a": Mark("1.0", 1)})]
            break
        except StoreUnavailable:  # it was ended while `wait` had a look
            continue
    async with opened(PostgresStore(schema.url, patience=PATIENT)) as other:
        await other.commit([event("b")])
    try:
        await waiting
    except StoreUnavailable:
        await store.wait({"zoo": 1}, seconds=3_600)
    await expect_dense(store, 2)


@over_postgres
async def test_a_commit_whose_connection_ends_may_be_given_again(
    store: Store, schema: PostgresSchema
) -> None:
    batch: list[Entry] = [event("a"), decision("d", 1.0)]
    await store.commit([event("first")])
    async with locked(schema):
        commit = asyncio.create_task(store.commit(batch))
        await until_waiting(schema)
        await asyncio.to_thread(schema.end_connections)
        with pytest.raises(StoreUnavailable, match="terminating connection"):
            await commit
    for _ in range(2):
        await store.commit(batch)
    await expect_dense(store, 2)
    assert (await store.describe("zoo")).counts == {"linucb": 1}


@over_postgres
async def test_a_commit_that_takes_too_long_keeps_nothing(
    store: Store, schema: PostgresSchema
) -> None:
    """The connection is cut: the server need not answer."""
    await store.commit([event("first")])
    async with opened(hasty := PostgresStore(schema.url, patience=PATIENT)):
        hasty._patience = HASTY  # not before: a busy machine takes its time to open it
        async with locked(schema):
            with pytest.raises(StoreUnavailable, match=r"no reply in 0\.2 s"):
                await hasty.commit([event("a")])
        assert await store.commit([event("b")]) == [Appended(2, ANY)]
        assert await store.marks("zoo", ["a"]) == {}


def test_what_opens_no_store_is_said(schema: PostgresSchema) -> None:
    server = schema.url.partition("?")[0]
    base = server.rpartition("/")[0]
    host = base.rpartition("@")[2]
    for url, said in (
        (f"{base}/forage_nowhere", 'database "forage_nowhere" does not exist'),
        (f"postgresql://forage_nobody:hunter2@{host}/postgres", "forage_nobody"),
        (f"{server}?options=-csearch_path%3Dforage_nowhere", "no schema has been selected"),
    ):
        with pytest.raises(ConfigurationError, match=said) as raised:
            asyncio.run(open_store(url).open())
        assert "hunter2" not in str(raised.value)


def test_places_of_deleted_rows_are_free_once_a_hundredth_of_a_table_is_dead(
    schema: PostgresSchema,
) -> None:
    query = (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = "
        "current_schema::regnamespace AND 'autovacuum_vacuum_scale_factor=0.01' = ANY(reloptions) "
        "ORDER BY relname"
    )
    run(schema, no_work)
    found = [name for (name,) in schema.run(query)]
    assert found == [f"forage_{name}" for name in ("decisions", "due", "events", "marks")]


def test_a_log_of_another_layout_is_refused() -> None:
    with postgres_schema() as fresh:
        fresh.run("CREATE TABLE forage_layout (layout integer)")
        fresh.run("INSERT INTO forage_layout VALUES (7)")
        with pytest.raises(UnknownSchema, match="has layout 7, and this Forage reads layout 3"):
            asyncio.run(open_store(fresh.url).open())


# -- readers ---------------------------------------------------------------------------------------


def test_a_reader_creates_no_tables() -> None:
    with postgres_schema() as fresh:
        with pytest.raises(StoreUnavailable, match="no tables yet: the service creates them"):
            asyncio.run(open_store(fresh.url, readonly=True).open())
        assert fresh.run("SELECT 1 FROM pg_tables WHERE schemaname = current_schema") == []


@over_postgres
async def test_a_reader_sees_every_commit_and_writes_nothing(
    store: Store, schema: PostgresSchema
) -> None:
    async with opened(PostgresStore(schema.url, patience=PATIENT, readonly=True)) as reader:
        await store.commit([event("a"), decision("d", 1.0)])
        await reader.wait({"zoo": 0}, seconds=3_600)
        assert await reader.due("zoo", 1.0, 9) == [b"d"]
        await expect_dense(reader, 1)
        await store.present("service", "serving", 3_600)
        assert await reader.present("copy", "", 0) == {"service": "serving"}
        await reader.commit([])  # whether a service could write
        with pytest.raises(StoreError, match="open read-only: only the service writes"):
            await reader.commit([event("b")])
        with pytest.raises(StoreError, match="open read-only"):
            await reader.put("zoo", Blob("k", b"v"))
    await expect_dense(store, 1)


def test_the_doctor_judges_a_store(schema: PostgresSchema) -> None:
    def examined(url: str) -> dict[str, Check]:
        return {check.name: check for check in asyncio.run(examine(Settings(store=url), None))}

    async def make(store: Store) -> None: ...

    with postgres_schema() as fresh:
        early = examined(fresh.url)["store"]
        assert (early.level, "the service creates them" in early.message) == ("ok", True)
    stores_at(schema.url).run(make)
    found = examined(schema.url + quote(" -csynchronous_commit=on"))
    assert {found[name].level for name in ("store", "durability", "clock")} == {"ok"}
    found = examined(schema.url + quote(" -csynchronous_commit=off"))
    assert found["durability"].level == "warning"
    assert "synchronous_commit = on" in found["durability"].advice


# -- settings and clocks ---------------------------------------------------------------------------


def test_durability_is_that_of_the_session(schema: PostgresSchema) -> None:
    async def usual(store: Store) -> None:
        await store.review()
        assert "of the PostgreSQL host" in store.durability

    async def fast(store: Store) -> None:
        assert "(synchronous_commit off)" in store.durability
        assert await store.commit([event("a")]) == [Appended(1, "")]

    stores_at(schema.url + quote(" -csynchronous_commit=on")).run(usual)
    stores_at(schema.url + quote(" -csynchronous_commit=off")).run(fast)


@pytest.mark.parametrize("ahead_s", [-9_000.0, 70.0])
def test_a_service_whose_clock_differs_from_that_of_postgresql_writes_nothing(
    schema: PostgresSchema, ahead_s: float
) -> None:
    """Neither a commit nor the probe by which a service finds its log again."""
    clock = SetClock()

    async def scenario(store: Store) -> None:
        await store.commit([event("a")])
        assert store.clock_skew_seconds == pytest.approx(0.0, abs=30.0)
        clock.jump(ahead_s)
        side = "behind" if ahead_s < 0 else "ahead of"
        for entries in ([event("b"), decision("d")], []):
            with pytest.raises(StoreUnavailable, match=f"[0-9]+ s {side} that of PostgreSQL"):
                await store.commit(entries)
        assert store.clock_skew_seconds == pytest.approx(ahead_s, abs=30.0)
        clock.jump(-ahead_s)
        assert await store.commit([event("b")]) == [Appended(2, ANY)]
        assert await store.decision("zoo", "d") is None

    Backend(lambda: PostgresStore(schema.url, patience=PATIENT, clock=clock)).run(scenario)


# -- tables ----------------------------------------------------------------------------------------


@over_postgres
async def test_long_identities_with_one_beginning_differ(store: Store) -> None:
    """Longer than an entry of an index; those that begin with a prefix are forgotten."""
    long = "d/" * 5_000
    marks = {long + "a": "1", long + "b": "2", long: "3", "d/": "4", "d": "5", "e/": "6"}
    await store.commit([Append("zoo", b"e", marks)])
    assert await store.marks("zoo", [long + "b", long]) == {
        long + "b": Mark("2", 1),
        long: Mark("3", 1),
    }
    await store.erase("zoo", Erasure(forget=[long + "a"]))
    assert set(await store.marks("zoo", list(marks))) == marks.keys() - {long + "a"}
    await store.erase("zoo", Erasure(forget=["d/"]))
    assert set(await store.marks("zoo", list(marks))) == {"d", "e/"}


@over_postgres
async def test_a_commit_finds_its_rows_by_their_keys(store: Store, schema: PostgresSchema) -> None:
    """Also in small tables: a prepared statement keeps its plan while a table grows."""

    def scans() -> dict[str, object]:
        tables = ("forage_marks", "forage_decisions", "forage_due", "forage_events")
        query = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = %s"
        found = dict(schema.run(query, schema.name))
        return {table: found[table] for table in tables}

    async def work(n: int) -> None:
        await store.commit([event(f"a{n}", settles=[f"d{n}"]), decision(f"d{n}", 1.0)])
        await store.commit([event(f"a{n}"), decision(f"d{n}", 1.0), event(f"b{n}", settles=["e"])])
        await store.marks("zoo", [f"a{n}"])
        await store.due("zoo", 9.0, 10)
        await store.read("zoo", 0, 10)
        await store.wait({"zoo": 0}, seconds=3_600)

    await work(0)
    before = await asyncio.to_thread(scans)
    for n in range(1, 10):
        await work(n)
    await store.close()  # a session tells what it did at its end, at the latest
    assert await asyncio.to_thread(scans) == before
    await store.open()


def test_of_several_faults_the_first_is_told() -> None:
    """Leaving a pipeline whose connection has ended raises an error of its own."""
    fault = psycopg.ProgrammingError("cannot exit pipeline mode while busy")
    fault.__context__ = psycopg.OperationalError("terminating connection")
    with pytest.raises(StoreUnavailable, match="terminating connection"), our_errors("log"):
        raise fault


# -- a failover that keeps connections open --------------------------------------------------------


async def idle_connections(store: PostgresStore) -> list[Connection]:
    """Let readers make some, and return them."""
    await asyncio.gather(*(store.read("zoo", 0, 10) for _ in range(4)))
    found = [db for db, _ in store._connections._idle]
    assert len(found) > 1
    return found


@over_postgres
async def test_a_commit_that_is_refused_asks_the_address_again(
    store: PostgresStore, schema: PostgresSchema
) -> None:
    """The old primary is read-only, and keeps all connections. New ones lead to another server."""
    for db in await idle_connections(store):
        await db.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.commit([event("a")])
    assert isinstance((await store.commit([event("a")]))[0], Appended)


@over_postgres
async def test_who_only_reads_asks_the_address_again_after_a_while(
    store: PostgresStore, schema: PostgresSchema
) -> None:
    known = await idle_connections(store)
    await store.read("zoo", 0, 10)
    assert store._connections._idle[-1][0] in known
    with mock.patch.object(postgres_connection, "RECONNECT_S", 0.0):
        await store.read("zoo", 0, 10)
    assert [db for db, _ in store._connections._idle if db in known] == []
