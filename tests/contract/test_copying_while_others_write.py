"""What a copy makes of that which happens while it is made (`service.maintenance.copying`), and
restores of the shared store, which nobody else opens meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.support.redis_server import RedisServer
from service.errors import ConfigurationError, LogGap, StoreError
from service.log.reading import Progress
from service.log.stores import Store, open_store, redis_restoring
from service.log.stores.base import Activation, Cut, DecisionRow, KeptMark, Part, Record, Snapshot
from service.log.stores.memory import MemoryStore
from service.log.stores.redis import RedisStore
from service.maintenance.copying import RemovedMeanwhileError, copy
from service.serving.chain import activation_mark
from service.state.events import Decision, Erased, Shown, encode_decision, encode_event
from tests.support.stores import decision, event, stores_at


class Interrupted(MemoryStore):
    """Something else is done before its first page of events, or of marks, is read."""

    def __init__(self, before: str, meanwhile: Callable[[Store], Awaitable[object]]) -> None:
        super().__init__()
        self._before, self._meanwhile = before, meanwhile

    async def _interrupt(self, at: str) -> None:
        if self._before == at:
            self._before = ""
            await self._meanwhile(self)

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        await self._interrupt("events")
        return await super().read(experiment, after, limit)

    async def list_marks(
        self, experiment: str, cursor: str, limit: int
    ) -> tuple[list[KeptMark], str]:
        await self._interrupt("marks")
        return await super().list_marks(experiment, cursor, limit)


async def trim(store: Store) -> None:
    await store.save_snapshot("zoo", Snapshot(2, b"s", origin=True))
    await store.trim("zoo", Cut(2, 0, 0.0), 9)


async def trim_rows(store: Store) -> None:
    await store.trim("zoo", Cut(0, 1, 0.0), 9)


async def erase(store: Store) -> None:
    """The event comes first; the rest may come after the copy."""
    erased = Erased(at=0.0, decisions=["d"], positions=[])
    await store.commit([event("erased", encode_event(erased))])


@pytest.mark.parametrize("meanwhile", [trim, trim_rows, erase])
@pytest.mark.parametrize("before", ["events", "marks"])
def test_a_copy_from_which_something_may_have_been_taken_out_counts_for_nothing(
    before: str, meanwhile: Callable[[Store], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        store = Interrupted(before, meanwhile)
        await store.commit([event("a"), event("b"), event("c"), decision("d")])
        if meanwhile is trim and before == "marks":
            target = (
                MemoryStore()
            )  # the events were copied by then, and the fold begins at the first
            await copy(store, target, Progress(None))
            assert len(await target.read("zoo", 0, 9)) == 3
            return
        with pytest.raises(RemovedMeanwhileError):
            await copy(store, MemoryStore(), Progress(None))
        await copy(store, MemoryStore(), Progress(None))

    asyncio.run(scenario())


def test_a_log_with_a_gap_is_not_copied() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.commit([event("a"), event("b"), event("c")])
        del store._experiments["zoo"].events[2]
        with pytest.raises(LogGap, match="position 3 follows 1"):
            await copy(Holed(store), MemoryStore(), Progress(None))

    asyncio.run(scenario())


class Holed(MemoryStore):
    """Lists the events that there are."""

    def __init__(self, store: MemoryStore) -> None:
        self.__dict__ |= vars(store)

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        events = self._experiments[experiment].events
        return [Record(at, payload) for at, payload in events.items() if at > after][:limit]


def deferred(id: str) -> DecisionRow:
    row = Decision(
        id=id, at=0.0, policy="linucb", assignment=1.0, model_version="linucb/0@1",
        schema_version=1, unit=None, context={}, arms=["a"], inline={}, probabilities=[1.0],
        seed=0, bank=0, shown=[Shown("a", 1.0, [])], slate=1.0, reward_by=5.0, accept_until=9.0,
        deferred=True,
    )  # fmt: skip
    return DecisionRow("zoo", id, "linucb", encode_decision(row))


BEFORE, SETTLED, AFTER, NEW = (letter * 22 for letter in "bsan")


def activation(id: str) -> Activation:
    return Activation("zoo", id, activation_mark(id), 5.0)


async def activate_two(store: Store) -> None:
    """One of them settles as well, one is of a row that is new."""
    await store.commit([deferred(NEW), activation(NEW), activation(AFTER)])
    await store.commit([event(f"{AFTER}#0/a", settles=AFTER)])


def test_what_was_activated_after_the_instant_is_due_in_the_copy() -> None:
    async def scenario() -> None:
        store, target = Interrupted("marks", activate_two), MemoryStore()
        await store.commit([deferred(BEFORE), deferred(SETTLED), deferred(AFTER)])
        await store.commit([activation(BEFORE), activation(SETTLED)])
        await store.commit([event(f"{SETTLED}#0/a", settles=SETTLED)])
        await copy(store, target, Progress(None))
        assert (await target.describe("zoo", whole=True)).due == {BEFORE: 5.0, AFTER: 5.0}
        marks, _ = await target.list_marks("zoo", "", 9)
        assert {mark.identity for mark in marks} == {
            *map(activation_mark, [BEFORE, SETTLED, AFTER]),
            f"{SETTLED}#0/a",
        }

    asyncio.run(scenario())


# -- restores of the shared store ------------------------------------------------------------------


def test_a_store_that_is_being_restored_opens_to_nobody_else(redis: RedisServer) -> None:
    """And where the restore was cut off, another begins with nothing of it left."""
    redis.command("FLUSHALL")
    redis.command("SET", "other", "program's")

    async def scenario() -> None:
        first, second = (RedisStore(redis.url, restoring=True) for _ in range(2))
        await first.open()
        await second.open()
        await first.begin_restore()
        await first.put("zoo", Part(events=[Record(1, b"e")], position=1))
        await first.adopt_secret(bytes(32))
        with pytest.raises(StoreError, match="a restore is under way or was cut off"):
            await open_store(redis.url).open()
        with pytest.raises(StoreError, match="another restore is at work"):
            await second.begin_restore()
        assert 0 < int(redis.command("PTTL", redis_restoring.HELD)) <= 15_000  # type: ignore[call-overload]
        redis.command("DEL", redis_restoring.HELD)  # the first was killed, and time has passed
        await second.begin_restore()
        assert await second.experiments() == []
        await second.adopt_secret(bytes(range(32)))
        await second.put("zoo", Part(events=[Record(1, b"f")], position=1))
        with pytest.raises(StoreError, match="this one counts for nothing"):
            await first.end_restore()
        await second.end_restore()
        with pytest.raises(ConfigurationError, match="holds experiment zoo, and nothing is"):
            await first.begin_restore()
        await first.close()
        await second.close()

    asyncio.run(scenario())
    stores_at(redis.url).run(expect_restored)
    assert redis.command("GET", "other") == b"program's"


async def expect_restored(store: Store) -> None:
    assert await store.read("zoo", 0, 9) == [Record(1, b"f")]
    assert await store.secret() == bytes(range(32))
