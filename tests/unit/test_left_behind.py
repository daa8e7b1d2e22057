"""Processes that fall behind a log which is cut or erased ahead of them; how they see others."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from service.bandits.heads import digest
from service.errors import Conflict, LogGap
from service.http.services import Services
from service.log.presence import ALIVE_SECONDS, Presence
from service.log.replica import Replica
from service.log.replicas import Replicas
from service.log.stores.base import Trim
from service.log.stores.memory import MemoryStore
from service.manage import admin
from service.settings import Settings
from service.state.artifacts import pack_artifact
from service.state.decisions import decode_decision
from service.state.events import Outcome, decode_event
from service.state.fold import State
from tests.support.clock import run_virtual
from tests.support.scenarios import Scenario, Test, as_test, virtual
from tests.support.service import virtual_services
from tests.unit.audited import artifact, define, state_of, visit
from tests.unit.folding import contents, shop

POLICIES: dict[str, Any] = {
    "linucb": {"kind": "linucb"},
    "net": {"kind": "neural_linear_ts", "hidden": [4], "embedding": 2, "draws": 16},
}


class Shared(MemoryStore):
    shared = True


async def start(store: MemoryStore) -> Services:
    services = virtual_services(Settings(store="memory://"), store)
    await services.log.open()
    return services


def with_a_service(scenario: Scenario) -> Test:
    """A test of a service over a store in memory."""

    async def run(work: Scenario) -> None:
        store = MemoryStore()
        services = await start(store)
        await define(services, shop(**POLICIES))
        try:
            await work(store, services)
        finally:
            await services.log.close()

    return as_test(scenario, lambda work: run_virtual(run(work)), given=2)


async def replicas_of(store: MemoryStore) -> Replicas:
    replicas = Replicas(store)
    await replicas.follow(seconds=0.0)
    return replicas


def same(one: State, other: State) -> bool:
    return one.position == other.position and all(
        digest(a.active.head) == digest(other.learners[name].active.head)  # type: ignore[arg-type]
        for name, a in one.learners.items()
    )


async def erase(services: Services, first: int) -> None:
    """The first decisions, as if they had been one unit's."""
    rows = await services.store.decisions("shop", 0, first)
    decisions = [decode_decision(row.payload) for row in rows]
    live = services.log.replicas.by_name["shop"]
    await services.eraser._erase_decisions(live, {row.id: row for row in decisions}, "")


async def trim(store: MemoryStore, services: Services, kept: int = 0) -> int:
    """Trim the log but for its last events; an origin stands for all of it."""
    origin = await services.log.snapshots.save_origin(services.log.replicas.by_name["shop"])
    await store.trim("shop", Trim(origin - kept, 0, 0.0), 1_000)
    return origin


@pytest.mark.parametrize("abreast", [False, True])
@pytest.mark.parametrize("erased", [False, True])
@with_a_service
async def test_a_process_goes_on_where_the_log_is_trimmed_or_erased_ahead_of_it(
    store: MemoryStore, services: Services, abreast: bool, erased: bool
) -> None:
    """abreast: it has folded all of it; its last event is gone or a tombstone, and not lost."""
    replicas = None if abreast else await replicas_of(store)
    for number in range(4):
        await visit(services, number)
    replicas = replicas or await replicas_of(store)
    if erased:
        await erase(services, 1_000 if abreast else 3)
    else:
        await trim(store, services)
        await replicas.follow(seconds=0.0)
        await services.log.snapshots.save(services.log.replicas.by_name["shop"])
    await visit(services, 4)
    await replicas.follow(seconds=0.0)
    assert not services.log.committer.degraded
    assert same(replicas.states["shop"], state_of(services))


@with_a_service
async def test_a_newer_snapshot_does_not_stand_for_lost_events(
    store: MemoryStore, services: Services
) -> None:
    """It holds events that the log does not: the state is what the log holds."""
    await visit(services, 0)
    replicas, kept = await replicas_of(store), store._experiments["shop"]
    position = kept.position
    await visit(services, 1)
    await services.log.snapshots.save(services.log.replicas.by_name["shop"])
    assert max(kept.snapshots) > position
    for lost in range(position + 1, kept.position + 1):
        del kept.events[lost]
    kept.events[position] = next(iter(kept.events.values()))
    kept.position = position
    await replicas.follow(seconds=0.0)
    live = replicas.by_name["shop"]
    assert (live.losses, live.state.position) == (1, position)
    kept.snapshots.clear()


@virtual
async def test_a_version_trained_on_what_was_erased_since_is_refused() -> None:
    """Also by a process that has been started since."""
    store = MemoryStore()
    services = await start(store)
    net = {**POLICIES["net"], "window": 50}
    await define(services, shop(net=net))
    await visit(services, 0)
    state = state_of(services)
    learner = state.learners["net"]
    memory = learner.active.memory
    assert memory is not None
    version = learner.version(1, learner.active.encoder)
    version.trained_to, version.rewards = state.position, learner.rewards
    assert version.memory is not None
    for key, arm, row in zip(memory.keys, memory.arms, memory.rows, strict=True):
        version.memory.add(1, key, Outcome(arm, 1.0, row))
    packed = pack_artifact(*learner.describe(version))
    await erase(services, 1)
    await services.log.close()
    again = await start(store)
    with pytest.raises(Conflict, match="erased"):
        await again.admin.stage(state_of(again), "net", packed, "")
    await again.log.close()


@with_a_service
async def test_a_version_that_lacks_too_many_events_is_refused(
    store: MemoryStore, services: Services
) -> None:
    for number in range(3):
        await visit(services, number)
    state = state_of(services)
    learner, behind = state.learners["net"], state.position - 2
    packed = artifact(learner, 2)
    with (
        mock.patch.object(admin, "MOST_BEHIND", behind - 1),
        pytest.raises(Conflict, match=f"lacks {behind} events, and may lack {behind - 1}"),
    ):
        await services.admin.stage(state, "net", packed, "")
    with mock.patch.object(admin, "MOST_BEHIND", behind):
        assert await services.admin.stage(state, "net", packed, "") == 1


@virtual
async def test_a_version_is_caught_up_at_one_position_in_every_process() -> None:
    """It lacks four events where it is staged. A process beside, one that starts later, and one
    that starts from a snapshot hold the same heads and sums."""
    store = Shared()
    first, second = await start(store), await start(store)
    await define(first, shop(**POLICIES))
    await visit(first, 0)
    await visit(first, 1)
    state = state_of(first)
    learner = state.learners["net"]
    packed = artifact(learner, state.position - 4, trained=True)
    assert await first.admin.stage(state, "net", packed, "") == 1
    with pytest.raises(Conflict, match="version 1 is still compared"):
        await first.admin.stage(state, "net", artifact(learner, state.position), "")
    await visit(first, 2)
    assert learner.challenger is not None
    assert 1 < learner.challenger.version.settled < learner.active.settled
    await first.log.snapshots.save(first.log.replicas.by_name["shop"])
    await visit(first, 3)
    from_snapshot = (await replicas_of(store)).states["shop"]
    kept = store._experiments["shop"]
    kept.snapshots = {}
    from_start = (await replicas_of(store)).states["shop"]
    await second.log.replicas.follow(0.0)
    assert contents(state_of(second)) == contents(state)
    assert contents(from_snapshot) == contents(from_start) == contents(state)
    await first.log.close()
    await second.log.close()


@with_a_service
async def test_an_erasure_keeps_the_version_at_its_gate(
    store: MemoryStore, services: Services
) -> None:
    """Its artifact is gone, with all that it lacked where it was staged: the origin holds it."""
    await visit(services, 0)
    state = state_of(services)
    learner = state.learners["net"]
    await services.admin.stage(state, "net", artifact(learner, 2, trained=True), "")
    await visit(services, 1)
    await erase(services, 2)
    await visit(services, 2)
    found = (await replicas_of(store)).states["shop"]
    assert found.learners["net"].challenger is not None
    assert contents(found) == contents(state)


@with_a_service
async def test_a_log_that_lacks_what_a_version_lacks_is_no_log_to_stage_it_on(
    store: MemoryStore, services: Services
) -> None:
    await visit(services, 0)
    state = state_of(services)
    packed = artifact(state.learners["net"], 2, trained=True)
    await services.admin.stage(state, "net", packed, "")
    staged = state.position
    replica = Replica(store, State("shop"))
    for record in await store.read("shop", 0, staged - 1):
        await replica.apply(record.position, decode_event(record.payload))
    [last] = await store.read("shop", staged - 1, 1)
    kept = store._experiments["shop"]
    kept.position = staged - 2
    with pytest.raises(LogGap, match=f"lacks position {staged - 1}"):
        await replica.apply(staged, decode_event(last.payload))
    kept.position = staged
    await trim(store, services, kept=staged - 3)
    with pytest.raises(LogGap, match="lacks position 3"):
        await replica.apply(staged, decode_event(last.payload))


@with_a_service
async def test_a_trimmed_log_without_a_snapshot_is_refused(
    store: MemoryStore, services: Services
) -> None:
    await visit(services, 0)
    origin = await trim(store, services, kept=1)
    kept = store._experiments["shop"]
    kept.snapshots, kept.origin = {}, None
    stopped = (await replicas_of(store)).quarantined["shop"]
    assert f"position {origin} follows 0 in the log" in stopped.reason


# -- presence --------------------------------------------------------------------------------------


@virtual
async def test_one_of_several_leads_and_another_after_it_has_gone_or_is_silent() -> None:
    store = Shared()
    both = [Presence(store), Presence(store)]
    assert not any(one.leads for one in both)
    for one in [*both, *both]:
        await one.beat()
    assert [one.count for one in both] == [2, 2]
    leader, other = sorted(both, key=lambda one: not one.leads)
    assert (leader.leads, other.leads) == (True, False)
    await leader.leave()
    await other.beat()
    assert other.leads
    await asyncio.sleep(ALIVE_SECONDS)
    assert not other.leads
