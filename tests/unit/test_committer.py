"""A commit of several experiments: one that is held up delays its own answers alone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from unittest import mock

import pytest

from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import StoreUnavailable
from service.http.services import Services
from service.log import committer
from service.log.committer import RETRY_SECONDS
from service.log.stores.base import Append, CommitResult, Entry
from service.log.stores.memory import MemoryStore
from service.settings import Settings
from service.settle.settlement import Receipt
from service.state.events import ArmUpserted, encode_event
from tests.support.clock import run_virtual
from tests.support.scenarios import Scenario, Test, as_test
from tests.support.service import virtual_services
from tests.unit.folding import shop


class Faulty(MemoryStore):
    """Commits while the gate is open. `lost` answers are lost, `failures` commits change nothing.

    shared    by other processes
    call_s    what a commit takes
    most      entries that fit into one
    largest   entries that one commit has had
    """

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.shared = shared  # type: ignore[misc]
        self.gate, self.lost, self.failures = asyncio.Event(), False, 0
        self.call_s, self.most, self.largest = 0.0, 1_000, 0
        self.gate.set()

    async def commit(self, entries: Sequence[Entry]) -> list[CommitResult]:
        await self.gate.wait()
        await asyncio.sleep(self.call_s)
        if self.failures or len(entries) > self.most:
            self.failures = max(0, self.failures - 1)
            raise StoreUnavailable("redis://log:6379/0: Timeout reading from log:6379")
        outcomes = await super().commit(entries)
        if self.lost:
            raise StoreUnavailable("no reply")
        self.largest = max(self.largest, len(entries))
        return outcomes


def over_two_experiments(scenario: Scenario, *, shared: bool = False) -> Test:
    """A test of a service over a faulty store."""

    async def serve(work: Scenario) -> None:
        log, settings = Faulty(shared=shared), Settings(store="memory://")
        services = virtual_services(settings, log)
        await services.log.open()
        try:
            for name in ("slow", "quick"):
                linucb = {"kind": "linucb", "features": ["pet x kind"]}
                await services.admin.define(
                    name, Definition.model_validate(shop(linucb=linucb)), ""
                )
                for _ in range(2):  # decisions of a size that nobody has measured take the lock
                    await token(services, name)
            async with asyncio.timeout(10):
                await work(services, log)
        finally:
            await services.log.close()

    return as_test(scenario, lambda work: run_virtual(serve(work)), given=2)


def over_a_shared_store(scenario: Scenario) -> Test:
    return over_two_experiments(scenario, shared=True)


async def token(services: Services, experiment: str) -> str:
    question = SelectRequest({"pet": "cat"}, experiment=experiment, policy="linucb")
    return (await services.selector.select(question)).token


def settle(services: Services, decision: str) -> asyncio.Task[Receipt]:
    return asyncio.create_task(services.settlements.reward(RewardRequest(decision, 1.0)))


async def reward(services: Services, experiment: str) -> asyncio.Task[Receipt]:
    """A reward that is on its way."""
    return settle(services, await token(services, experiment))


def rewards(services: Services, experiment: str) -> int:
    return services.log.replicas.by_name[experiment].state.learners["linucb"].rewards


@over_two_experiments
async def test_a_held_lock_delays_its_own_experiment_alone(
    services: Services, store: Faulty
) -> None:
    """One commit has a reward of each; the next ones go on, too. Rewards of the held one are
    folded in the order of the log."""
    async with services.log.replicas.by_name["slow"].lock:
        tokens = [await token(services, name) for name in ("slow", "quick")]
        store.gate.clear()
        slow, quick = [settle(services, each) for each in tokens]
        await asyncio.sleep(0.01)
        store.gate.set()
        assert (await quick).status == "accepted"
        assert (await (await reward(services, "quick"))).status == "accepted"
        assert rewards(services, "quick") == 2
        assert not slow.done()
        assert rewards(services, "slow") == 0
        more = [await reward(services, "slow") for _ in range(5)]
        await asyncio.sleep(0.05)  # several commits
        assert not any(task.done() for task in more)
    assert [(await task).status for task in (slow, *more)] == ["accepted"] * 6
    assert rewards(services, "slow") == 6
    position = services.log.replicas.states["slow"].position
    assert [each.position for each in await store.read("slow", 0, 10)][-1] == position


@over_two_experiments
async def test_close_waits_for_what_is_still_to_be_folded(
    services: Services, store: Faulty
) -> None:
    async with services.log.replicas.by_name["slow"].lock:
        task = await reward(services, "slow")
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(services.log.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
    await closing
    assert (await task).status == "accepted"
    assert rewards(services, "slow") == 1


# -- other processes, and a log that was gone ------------------------------------------------------


async def append_elsewhere(store: Faulty, experiment: str, arm: str) -> None:
    event = ArmUpserted(at=0.0, arm=arm, features={"kind": "toy"})
    await store.commit([Append(experiment, encode_event(event), {f"arm/{arm}": ""})])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@over_a_shared_store
async def test_a_held_lock_delays_the_following_of_its_own_experiment_alone(
    services: Services, store: Faulty
) -> None:
    """Another process appends to both, again and again; the held one is folded once it is free."""
    states = services.log.replicas.states
    async with services.log.replicas.by_name["slow"].lock:
        for arm in ("ball", "rope"):
            await append_elsewhere(store, "slow", arm)
            await append_elsewhere(store, "quick", arm)
            await until(lambda: arm in states["quick"].arms)  # noqa: B023
        assert "ball" not in states["slow"].arms
    await until(lambda: "rope" in states["slow"].arms)


@over_a_shared_store
async def test_a_held_lock_does_not_delay_the_end_of_a_failure(
    services: Services, store: Faulty
) -> None:
    """What was appended though its answer was lost is folded once the experiment is free."""
    tokens = [await token(services, name) for name in ("slow", "quick")]
    async with services.log.replicas.by_name["slow"].lock:
        store.lost = True
        settled = [settle(services, each) for each in tokens]
        for each in settled:
            with pytest.raises(StoreUnavailable):
                await each
        assert services.log.committer.degraded
        store.lost = False
        await until(lambda: not services.log.committer.degraded)
        await until(lambda: rewards(services, "quick") == 1)
        assert rewards(services, "slow") == 0
    await until(lambda: rewards(services, "slow") == 1)


@over_two_experiments
async def test_a_reward_whose_commit_timed_out_is_not_acknowledged(
    services: Services, store: Faulty
) -> None:
    decision = await token(services, "quick")
    store.failures = 1
    with pytest.raises(StoreUnavailable):
        await settle(services, decision)
    assert rewards(services, "quick") == 0


@over_two_experiments
async def test_decisions_that_wait_outlive_commits_that_fail(
    services: Services, store: Faulty
) -> None:
    store.failures = 3  # of the decision, and twice of what waits
    question = SelectRequest({"pet": "cat"}, experiment="quick")
    answer = await services.selector.select(question)
    assert (answer.logged, services.log.committer.buffered) == (False, 1)
    await until(lambda: not services.log.committer.buffered)
    assert await store.decision("quick", answer.decision.id) is not None


@asynccontextmanager
async def selects_each_millisecond(services: Services) -> AsyncIterator[None]:
    """Traffic that does not stop while the block runs."""

    async def ask() -> None:
        async with asyncio.TaskGroup() as asked:
            while True:
                asked.create_task(token(services, "quick"))
                await asyncio.sleep(0.001)

    traffic = asyncio.create_task(ask())
    try:
        yield
    finally:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)


async def first_accepted(services: Services, experiment: str) -> float:
    """Return the seconds until a reward is accepted that is sent again and again."""
    loop, decision = asyncio.get_running_loop(), await token(services, experiment)
    began = loop.time()
    while True:
        with suppress(StoreUnavailable):
            await settle(services, decision)
            return loop.time() - began
        await asyncio.sleep(0.01)


@over_a_shared_store
async def test_rewards_are_accepted_again_while_selects_go_on(
    services: Services, store: Faulty
) -> None:
    """One commit fails, as when Redis cuts a connection: each select then waits in memory."""
    store.call_s = 0.005
    async with selects_each_millisecond(services):
        await asyncio.sleep(0.05)
        store.failures = 1
        await until(lambda: services.log.committer.degraded)
        assert await first_accepted(services, "slow") < 1.0
        assert not services.log.committer.degraded
        await until(lambda: not services.log.committer.buffered)


@over_two_experiments
async def test_what_waits_in_memory_is_written_beside_live_traffic(
    services: Services, store: Faulty
) -> None:
    """An outage of a second leaves more than one commit takes: it goes in several, and the traffic
    meanwhile is logged as ever."""
    store.call_s = 0.005
    async with selects_each_millisecond(services):
        store.failures = 1_000
        await until(lambda: services.log.committer.buffered >= 800)
        store.failures = 0
        with mock.patch.object(committer, "DRAINED_BYTES", 20_000):  # some twenty rows
            await until(lambda: not services.log.committer.degraded)
            left = services.log.committer.buffered
            assert left > 700
            store.largest = 0
            question = SelectRequest({"pet": "cat"}, experiment="slow")
            assert (await services.selector.select(question)).logged
            assert 0 < services.log.committer.buffered < left
            await until(lambda: not services.log.committer.buffered)
            assert store.largest < 60


@over_two_experiments
async def test_a_log_that_takes_no_large_commit_stays_gone(
    services: Services, store: Faulty
) -> None:
    """A disk that is nearly full takes an empty commit: rewards are not refused and accepted in
    turns."""
    store.most = 0
    await token(services, "quick")
    await until(lambda: services.log.committer.degraded)
    await asyncio.sleep(5 * RETRY_SECONDS)
    assert services.log.committer.degraded
    store.most = 1_000
    await until(lambda: not services.log.committer.degraded)
