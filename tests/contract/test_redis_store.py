"""What only the shared store can show: several services, and a server that fails."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from unittest import mock
from unittest.mock import ANY, AsyncMock

import pytest

from service.decide.lookup import new_id
from service.errors import StoreError, StoreUnavailable, UnknownSchema
from service.log.stores import Store, open_store, redis_connection, redis_fitness
from service.log.stores.base import Append, Appended, Entry, Erasure, Mark, MarkConflict, Trim
from service.log.stores.redis import RedisStore
from service.log.stores.redis_connection import RedisTimeouts
from service.log.stores.redis_scripts import PER_BUCKET
from service.log.stores.store import START
from service.security.token import text_of
from tests.support.clock import SetClock
from tests.support.redis_server import RedisServer, redis_server
from tests.support.scenarios import Test, as_test
from tests.support.stores import Backend, Scenario, decision, event, expect_dense, stores_at


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Of this test alone: it may be killed, filled and reconfigured."""
    with redis_server(tmp_path, tcp=True) as server:
        yield server


PATIENT = RedisTimeouts(connect_s=30.0, reply_s=30.0)
"""A busy machine takes its time; what fails at once does so well before."""


def run(server: RedisServer, scenario: Scenario, patience: RedisTimeouts = PATIENT) -> None:
    Backend(lambda: RedisStore(server.url, patience=patience)).run(scenario)


def over(fixture: str) -> Callable[[Scenario], Test]:
    """A test on a store of this server."""
    return lambda scenario: as_test(scenario, run, fixture)


def refused(url: str, error: type[Exception]) -> str:
    """What opening says. The store is closed by then: nothing is left to clean up."""
    with pytest.raises(error) as raised:
        asyncio.run(open_store(url).open())
    return str(raised.value)


@over("redis")
async def test_two_services_share_one_log(one: Store, redis: RedisServer) -> None:
    """Both want the same 200 identities: each is taken once, and the loser is told by whom. One
    that waits hears of the other."""
    other = open_store(redis.url)
    await other.open()
    assert one.shared
    assert await one.secret() == await other.secret()

    async def write(store: Store, value: str) -> list[Appended | MarkConflict]:
        outcomes: list[Appended | MarkConflict] = []
        for n in range(0, 200, 10):
            batch = [Append("zoo", b"", {str(i): value}) for i in range(n, n + 10)]
            outcomes += await store.commit(batch)  # type: ignore[arg-type]
        return outcomes

    waiting = asyncio.create_task(other.wait({"zoo": 0, "shop": 0}, seconds=60))
    await asyncio.sleep(0.05)
    ours, theirs = await asyncio.gather(write(one, "ours"), write(other, "theirs"))
    await asyncio.wait_for(waiting, 60)
    assert await other.experiments() == ["zoo"]
    for n, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(our, Appended):
            assert their == MarkConflict({str(n): Mark("ours", our.position)})
        else:
            assert isinstance(their, Appended)
            assert our == MarkConflict({str(n): Mark("theirs", their.position)})
    await expect_dense(other, 200)
    await other.close()


@pytest.mark.process
def test_a_wait_outlasts_one_blocking_read(redis: RedisServer) -> None:
    async def scenario(store: Store) -> None:
        start = time.monotonic()
        await store.wait({"zoo": 0}, seconds=0.1)
        assert time.monotonic() - start > 0.09

    run(redis, scenario, replace(PATIENT, block_s=0.02))


@pytest.mark.process
@over("server")
async def test_a_killed_server_loses_nothing_acknowledged(
    store: Store, server: RedisServer
) -> None:
    """And while it is away every call says so at once; a call after its return works."""
    for n in range(30):
        await store.commit([event(str(n)), decision(str(n), 1.0)])
    waiting = asyncio.create_task(store.wait({"zoo": 30}, seconds=60))
    await asyncio.sleep(0.05)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await waiting
    start = time.monotonic()
    for call in (store.commit([event("new")]), store.read("zoo", 0, 9), store.secret()):
        with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1"):
            await call
    assert time.monotonic() - start < PATIENT.reply_s / 2, "nobody waited for a reply"
    server.start()
    await expect_dense(store, 30)
    assert len(await store.due("zoo", 1.0, 100)) == 30
    assert await store.commit([event("29"), event("new")]) == [
        MarkConflict({"29": Mark("1.0", 30)}),
        Appended(31, ANY),
    ]


@pytest.mark.process
@over("server")
async def test_an_unanswered_commit_may_be_given_again(store: Store, server: RedisServer) -> None:
    """Redis did it and the reply was lost: the second time every event is known."""
    batch: list[Entry] = [event("a"), event("b"), decision("d", 1.0)]
    hasty = RedisStore(server.url, patience=replace(PATIENT, reply_s=0.2))
    await store.commit([])
    with server.frozen(), pytest.raises(StoreUnavailable):
        await hasty.commit(batch)
    await hasty.close()
    for _ in range(2):
        await store.commit(batch)
    await expect_dense(store, 2)
    assert (await store.describe("zoo")).counts == {"linucb": 1}


@pytest.mark.process
@pytest.mark.parametrize(
    ("refuse", "take", "said"),
    [
        (["CONFIG", "SET", "maxmemory", 1], ["CONFIG", "SET", "maxmemory", 0], "maxmemory"),
        (["REPLICAOF", "127.0.0.1", 1], ["REPLICAOF", "NO", "ONE"], "read only"),
    ],
    ids=["full", "replica"],
)
@over("server")
async def test_a_server_that_takes_no_writes_costs_the_batch_and_nothing_else(
    store: Store, server: RedisServer, refuse: list[object], take: list[object], said: str
) -> None:
    batch: list[Entry] = [event("a", os.urandom(10_000), settles=["d"]), decision("d", 1.0)]
    server.command(*refuse)
    with pytest.raises(StoreUnavailable, match=said) as raised:
        await store.commit(batch)
    assert "SADD" not in str(raised.value)  # nor any other command: they hold payloads
    assert await store.marks("zoo", ["a"]) == {}
    assert await store.read("zoo", 0, 9) == []
    server.command(*take)
    assert (await store.commit(batch))[0] == Appended(1, ANY)


@over("redis")
async def test_positions_go_on_where_scripts_and_entries_are_gone(
    store: Store, redis: RedisServer
) -> None:
    await store.commit([event("a"), event("b")])
    redis.command("SCRIPT", "FLUSH")
    redis.command("XTRIM", "forage:{zoo}:events", "MAXLEN", 0)
    found = await store.commit([event("c"), event("d")])
    assert found == [Appended(3, ANY), Appended(4, ANY)]


async def kept_until(store: Store) -> dict[str, float | None]:
    """All marks, each of which may be listed more than once."""
    cursor, found = START, dict[str, float | None]()
    while True:
        marks, cursor = await store.list_marks("zoo", cursor, 100)
        found |= {mark.identity: mark.keep_until for mark in marks}
        if cursor == START:
            return found


@over("redis")
async def test_the_clock_of_redis_forgets_no_mark(store: Store, redis: RedisServer) -> None:
    """Only a trim does, once log time has passed `keep_until`, or an erasure. The three marks share
    a bucket: what is kept for longer, or for ever, stays when the others go."""
    await store.commit([event("a", keep_until=4.5), event("b"), event("c", keep_until=9.5)])
    await store.overwrite_marks("zoo", {"c": "null"}, keep_until=10.0)
    assert redis.command("PTTL", "forage:{zoo}:marks:0") == -1
    assert await kept_until(store) == {"a": 5.0, "b": None, "c": 10.0}
    assert await store.trim("zoo", Trim(0, 0, marks_before=5.0), 100) == 0
    assert await store.trim("zoo", Trim(0, 0, marks_before=10.0), 100) == 1
    assert set(await store.marks("zoo", ["a", "b", "c"])) == {"b", "c"}
    assert redis.command("ZSCORE", "forage:{zoo}:mark_ages", "forage:{zoo}:marks:0") == 10.0
    await store.erase("zoo", Erasure(forget=["c"]))
    assert await kept_until(store) == {"b": None}
    await store.erase("zoo", Erasure(forget=["b"]))
    assert await store.trim("zoo", Trim(0, 0, marks_before=1e12), 100) == 0
    assert redis.command("HGET", "forage:{zoo}:marks", "count") == b"0"


def rewards(count: int) -> Iterator[Append]:
    """The two marks of each, whose ids are in the order of time, random, or short."""
    rng = Random(1)
    for number in range(count):
        ids = new_id(1e9 + number, rng), text_of(rng.randbytes(16)), str(number)
        own = ids[number % 3]
        yield Append("zoo", b"", {f"{own}#17": "[1.0]", f"{own}=0//17": "1.0"}, keep_until=1e9)


@over("redis")
async def test_buckets_of_marks_have_one_size(store: Store, redis: RedisServer) -> None:
    entries = [*rewards(2_000)]
    for start in range(0, len(entries), 100):
        await store.commit(entries[start : start + 100])
    assert all(isinstance(known, MarkConflict) for known in await store.commit(entries))
    buckets = redis.command("KEYS", "forage:{zoo}:marks:*")
    sizes = [redis.command("HLEN", key) for key in buckets]
    assert sum(sizes) == 4_000
    assert len(sizes) == 4_000 / PER_BUCKET
    assert max(sizes) < 4 * PER_BUCKET
    assert {redis.command("OBJECT", "ENCODING", key) for key in buckets} == {b"listpack"}
    assert redis.command("ZCARD", "forage:{zoo}:mark_ages") == len(sizes)
    used = sum(redis.command("MEMORY", "USAGE", key) for key in buckets) / 4_000
    assert used < 1.5 * len("AZvAyEsAxJGc0FdYbMd6jw#17 1234 1000000000 [1.0]")
    await store.erase("zoo", Erasure(forget=[one for entry in entries for one in entry.marks]))
    assert redis.command("KEYS", "forage:{zoo}:marks:*") == []


@over("redis")
async def test_marks_that_move_while_they_are_listed_are_listed(store: Store) -> None:
    entries = [*rewards(1_000)]
    await store.commit(entries[:500])
    listed, cursor = await store.list_marks("zoo", START, 100)
    found = {mark.identity for mark in listed}
    for start in range(500, 1_000, 20):
        assert cursor != START, "more buckets than pages"
        await store.commit(entries[start : start + 20])
        listed, cursor = await store.list_marks("zoo", cursor, 1)
        found |= {mark.identity for mark in listed}
    while cursor != START:
        listed, cursor = await store.list_marks("zoo", cursor, 100)
        found |= {mark.identity for mark in listed}
    assert found >= {identity for entry in entries[:500] for identity in entry.marks}


@over("redis")
async def test_marks_go_one_by_one_from_their_buckets(store: Store, redis: RedisServer) -> None:
    """Each once it may, though others of its bucket may not, and in steps."""
    marks = {f"decision-{n}": float(n) for n in range(1_000)}
    for identity, keep_until in marks.items():
        await store.commit([event(identity, keep_until=keep_until)])
    for upto in (300, 301, 1_000):
        count = 0
        while went := await store.trim("zoo", Trim(0, 0, marks_before=float(upto)), 100):
            count += went
        kept = {one: keep_until for one, keep_until in marks.items() if keep_until >= upto}
        assert await kept_until(store) == kept
        assert set(await store.marks("zoo", [*marks])) == kept.keys()
        assert redis.command("HGET", "forage:{zoo}:marks", "count") == b"%d" % len(kept)
    assert redis.command("KEYS", "forage:{zoo}:mark*") == [b"forage:{zoo}:marks"]


@over("redis")
async def test_marks_go_past_buckets_whose_least_mark_was_replaced(store: Store) -> None:
    """Their turn comes too early, and nothing of them goes; the others' marks do."""
    names = [f"decision-{n}" for n in range(2_000)]
    for name in names:
        await store.commit([event(name, keep_until=10.0 if name == names[-1] else 5.0)])
    await store.overwrite_marks("zoo", dict.fromkeys(names[:-1], "null"), keep_until=20.0)
    assert await store.trim("zoo", Trim(0, 0, marks_before=11.0), 100) == 1
    assert set(await store.marks("zoo", names)) == set(names[:-1])


@over("redis")
async def test_many_marks_of_one_decision_share_a_bucket(store: Store, redis: RedisServer) -> None:
    """More than Lua passes to a command at once."""
    decision = text_of(Random(1).randbytes(16))
    marks = {f"{decision}={n}": "1" for n in range(9_000)}
    others = {f"{text_of(Random(n).randbytes(16))}#a": "1" for n in range(2, 1_000)}
    await store.commit([Append("zoo", b"", marks | others, keep_until=5.0)])
    assert len(await store.marks("zoo", [*marks, *others])) == 9_998
    while await store.trim("zoo", Trim(0, 0, marks_before=6.0), 100):
        pass
    assert await kept_until(store) == {}


@pytest.mark.parametrize("ahead_s", [-9_000.0, 70.0])
def test_a_service_whose_clock_differs_from_that_of_redis_writes_nothing(
    redis: RedisServer, ahead_s: float
) -> None:
    """Neither a commit nor the probe by which a service finds its log again."""
    clock = SetClock()

    async def scenario(store: Store) -> None:
        await store.commit([event("a")])
        assert store.clock_skew_seconds == pytest.approx(0.0, abs=30.0)
        clock.jump(ahead_s)
        side = "behind" if ahead_s < 0 else "ahead of"
        for entries in ([event("b"), decision("d")], []):
            with pytest.raises(
                StoreUnavailable,
                match=f"[0-9]+ s {side} that of Redis",
            ):
                await store.commit(entries)
        assert store.clock_skew_seconds == pytest.approx(ahead_s, abs=30.0)
        clock.jump(-ahead_s)
        assert await store.commit([event("b")]) == [Appended(2, ANY)]
        assert await store.decision("zoo", "d") is None

    Backend(lambda: RedisStore(redis.url, patience=PATIENT, clock=clock)).run(scenario)


def test_a_log_of_another_layout_is_refused(redis: RedisServer) -> None:
    redis.command("SET", "forage:layout", 7)
    assert "has layout 7, and this Forage reads layout 2" in refused(redis.url, UnknownSchema)


@pytest.mark.process
def test_a_server_that_evicts_is_refused(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "maxmemory-policy is allkeys-lru" in refused(server.url, StoreError)


@pytest.mark.process
def test_durability_says_what_the_server_does(server: RedisServer) -> None:
    async def always(store: Store) -> None:
        assert "survives kill -9 and power loss of the Redis host" in store.durability

    async def everysec(store: Store) -> None:
        assert "2 s" in store.durability

    async def unknown(store: Store) -> None:  # hosted Redis keeps its settings to itself
        assert store.durability.startswith("Unknown")
        assert await store.commit([event("a")]) == [Appended(1, ANY)]

    run(server, always)
    server.command("CONFIG", "SET", "appendfsync", "everysec")
    run(server, everysec)
    server.command("ACL", "SETUSER", "hosted", "on", ">word", "~*", "+@all", "-config", "-info")
    stores_at(server.url.replace("127.0.0.1", "hosted:word@127.0.0.1")).run(unknown)
    kept = {"appendonly": "yes", "appendfsync": "always", "min-replicas-to-write": "1"}
    assert "min-replicas-to-write" not in redis_fitness.durability(kept, replicas=1)
    assert redis_fitness.durability(kept, replicas=2).endswith("(min-replicas-to-write 1).")
    assert "appendonly no" in redis_fitness.durability({"appendonly": "no"})
    assert "appendfsync no" in redis_fitness.durability({"appendonly": "yes", "appendfsync": "no"})


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"redis_version": "6.2.14"}, "6.2.14; 7.0 or newer"),
        ({"redis_version": "7.0.15", "redis_mode": "cluster"}, "cluster"),
    ],
)
def test_an_unfit_server_is_told_why(info: dict[str, str], reason: str) -> None:
    assert reason in str(redis_fitness.unfit(info))


def test_no_server_is_said_without_the_password() -> None:
    said = refused("redis://user:hunter2@127.0.0.1:1/0", StoreUnavailable)
    assert said.startswith("redis://127.0.0.1:1/0: ")
    assert "hunter2" not in said


@pytest.mark.process
def test_a_commit_is_acknowledged_once_replicas_of_redis_hold_it(tmp_path: Path) -> None:
    """Without one it is not, though it may be kept: the same again, once there is one, is known."""

    async def scenario(url: str, replica: RedisServer) -> None:
        store = open_store(url, redis_replicas=1)
        await store.open()
        try:
            assert "1 of its replicas hold it" in store.durability
            for entries in ([event("first")], []):
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas of Redis"):
                    await store.commit(entries)
            await asyncio.to_thread(replica.start)
            while True:
                with suppress(StoreUnavailable):
                    [known] = await store.commit([event("first")])
                    break
            assert isinstance(known, MarkConflict)
            assert await store.commit([event("second")]) == [Appended(2, ANY)]
        finally:
            await store.close()

    folders = [tmp_path / "primary", tmp_path / "replica"]
    for folder in folders:
        folder.mkdir()
    with redis_server(folders[0], "--repl-diskless-sync-delay", "0", tcp=True) as primary:
        replica = RedisServer(folders[1], "--replicaof", "127.0.0.1", str(primary.port))
        try:
            asyncio.run(scenario(primary.url, replica))
        finally:
            replica.kill()


def test_a_connection_lost_just_before_a_write_is_a_log_that_is_gone() -> None:
    """uvloop says so with a RuntimeError; any other is a fault of ours and stays one."""
    store = RedisStore("redis://127.0.0.1:1/0")
    lost = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
    for text, error in ((lost, StoreUnavailable), ("another", RuntimeError)):
        store._redis._client.execute_command = AsyncMock(side_effect=RuntimeError(text))
        with pytest.raises(error):
            asyncio.run(store.experiments())


# -- a failover that keeps connections open --------------------------------------------------------


@dataclass
class Failover:
    """Two servers, and an address that leads to the first until `switch`."""

    address: Path
    old: RedisServer
    new: RedisServer

    def switch(self) -> None:
        self.address.unlink()
        self.address.symlink_to(self.new.folder / "redis.sock")


@pytest.fixture
def failover(tmp_path: Path) -> Iterator[Failover]:
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    with redis_server(folders[0]) as old, redis_server(folders[1]) as new:
        address = tmp_path / "address.sock"
        address.symlink_to(folders[0] / "redis.sock")
        yield Failover(address, old, new)


def over_failover(scenario: Callable[[Store, Failover], Awaitable[None]]) -> Test:
    def run(failover: Failover, work: Scenario) -> None:
        url = f"unix://{failover.address}?db=0"
        Backend(lambda: RedisStore(url, patience=PATIENT)).run(work)

    return as_test(scenario, run, "failover")


@pytest.mark.parametrize(
    "command",
    [
        ("REPLICAOF", "127.0.0.1", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "maxmemory", "1"),
    ],
    ids=["read-only", "too few replicas", "full"],
)
@over_failover
async def test_a_commit_that_is_refused_asks_the_address_again(
    store: Store, failover: Failover, command: tuple[str, ...]
) -> None:
    """The old primary keeps all connections; they are idle, and the readers' among them."""
    await asyncio.gather(*(store.read("zoo", 0, 10) for _ in range(8)))
    failover.old.command(*command)
    failover.switch()
    with pytest.raises(StoreUnavailable):
        await store.commit([event("a")])
    assert isinstance((await store.commit([event("a")]))[0], Appended)
    assert len(await store.read("zoo", 0, 10)) == 1
    assert failover.new.command("XLEN", "forage:{zoo}:events") == 1


@over_failover
async def test_who_only_reads_asks_the_address_again_after_a_while(
    store: Store, failover: Failover
) -> None:
    failover.switch()
    other = RedisStore(failover.new.url, patience=PATIENT)
    await other.commit([event("a")])
    await other.close()
    assert await store.read("zoo", 0, 10) == []
    with mock.patch.object(redis_connection, "RECONNECT_S", 0.0):
        assert len(await store.read("zoo", 0, 10)) == 1
