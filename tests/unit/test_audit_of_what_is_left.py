"""An audit of a log from which rows and events were trimmed or erased."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from msgspec import structs

from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.log.stores.base import Trim
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from service.offline.audit_report import AuditReport
from service.state.events import Erased, Tombstone, decode_event, encode_event
from tests.support.clock import run_virtual
from tests.unit.audited import CAT, DOG, define, live, state_of
from tests.unit.folding import shop

Play = Callable[[Services], Awaitable[None]]


async def visits(services: Services, count: int) -> None:
    for number in range(count):
        unit = "ann" if number % 4 == 0 else f"unit-{number}"
        answer = await services.selector.select(
            SelectRequest([CAT, DOG][number % 2], "shop", "lints", unit=unit)
        )
        await services.settlements.reward(
            RewardRequest(answer.token, rewards={answer.decision.shown[0].arm: 1.0})
        )


def audited(*plays: Play, then: Callable[[MemoryStore], None] | None = None) -> AuditReport:
    """What an audit finds after these lives of a service, and after what was done to its store."""
    store = MemoryStore()

    async def run() -> AuditReport:
        async def begin(services: Services) -> None:
            await define(services, shop(lints={"kind": "lints", "draws": 16}))

        for play in (begin, *plays):
            await live(store, play)
        if then:
            then(store)
        found = await Audit(store, "shop").run()
        for parts in (2, 5):
            assert await Audit(store, "shop", parts=parts).run() == found
        return found

    return run_virtual(run())


async def erase(services: Services) -> None:
    await services.eraser.erase("ann", "")


async def twelve(services: Services) -> None:
    await visits(services, 12)


async def trim(services: Services) -> None:
    """Up to the newest snapshot: the definition, and the first twelve rewards."""
    store = services.store
    newest = (await store.snapshots("shop"))[0]
    await store.put("shop", replace(newest, origin=True))
    rows = await store.decisions("shop", 0, 100)
    await store.trim("shop", Trim(newest.position, rows[-1].number, 0.0), 1_000)


def test_what_was_erased_is_counted_and_the_rest_is_clean() -> None:
    """Of 24 decisions 6 are erased, 3 before and 3 after the first erasure. The first half was made
    before the second origin; what came after it is derived in full."""
    found = audited(twelve, erase, twelve, erase, twelve)
    assert found.kept == []
    assert found.clean
    assert (found.decisions, found.erased, found.tombstones) == (30, 6, 6)
    assert found.earlier == 18
    assert any("6 erased; 6 events are tombstones" in line for line in found.lines())


async def defaults(services: Services) -> None:
    """Twelve decisions expire as one event; one of them is rewarded later."""
    made = [
        await services.selector.select(
            SelectRequest(CAT, "shop", "lints", unit="ann" if number % 4 == 0 else "bob")
        )
        for number in range(12)
    ]
    await services.expiry.expire(state_of(services), *(one.decision for one in made))
    await services.settlements.reward(RewardRequest(made[5].token, 1.0))


def test_what_was_erased_of_a_block_is_counted_and_what_is_left_of_it_is_checked() -> None:
    found = audited(defaults, erase, defaults)
    assert found.kept == []
    assert found.clean
    assert (found.decisions, found.erased, found.tombstones) == (21, 3, 1)
    wrong = audited(defaults, erase, defaults, then=miscount)
    assert [(one.kind, one.id) for one in wrong.kept] == [("log", "position 2")]


def miscount(store: MemoryStore) -> None:
    """Take the event of an erasure for another one."""
    events = store._experiments["shop"].events
    for position, payload in events.items():
        event = decode_event(payload)
        if isinstance(event, Erased):
            events[position] = encode_event(structs.replace(event, positions=[]))


def test_what_was_trimmed_is_counted_and_the_rest_is_clean() -> None:
    found = audited(twelve, trim, twelve)
    assert found.kept == []
    assert found.clean
    assert (found.decisions, found.trimmed, found.earlier, found.events) == (12, 12, 0, 12)


def remove(store: MemoryStore) -> None:
    """A row."""
    kept = store._experiments["shop"]
    row = list(kept.decisions)[5]
    del kept.decisions[row], kept.numbers[row]


def forge(store: MemoryStore) -> None:
    """A tombstone that no erasure names."""
    events = store._experiments["shop"].events
    [events[4]] = [
        payload
        for payload in list(events.values())[:2]
        if isinstance(decode_event(payload), Tombstone)
    ]


def change(store: MemoryStore) -> None:
    """A decision after the origin."""
    kept = store._experiments["shop"]
    row = list(kept.decisions)[-1]
    kept.decisions[row] = kept.decisions[row][:-1]


def damage(store: MemoryStore) -> None:
    """The origin, without which nothing is derived."""
    kept = store._experiments["shop"]
    assert kept.origin is not None
    kept.origin = replace(kept.origin, payload=b"damaged")


@pytest.mark.parametrize(
    ("first", "then", "kind", "count"),
    [
        (trim, remove, "missing", 1),
        (erase, forge, "log", 1),
        (erase, change, "unreadable", 1),
        (erase, damage, "log", 2),
    ],
)
def test_what_was_changed_since_is_named(
    first: Play, then: Callable[[MemoryStore], None], kind: str, count: int
) -> None:
    found = audited(twelve, first, twelve, then=then)
    assert (found.counts, found.clean) == ({kind: count}, False)
    assert (found.underived > 0) is (then is damage)
