"""Defaults in blocks: which decisions are settled together, and what readers of the log make of
them."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from service.bandits.heads import digest
from service.decide.select import Answer
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.errors import LogGap
from service.http.services import Services
from service.log.presence import Presence
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from service.settle import expiry
from service.settle.expiry import BLOCK_ARMS
from service.state.events import (
    Default,
    Expired,
    Tombstone,
    decode_event,
    encode_event,
    settlements_of,
)
from service.state.fold import ErasedParts, State
from service.training.settlements import collect
from tests.support.clock import run_virtual
from tests.unit.audited import define, live, state_of
from tests.unit.folding import POLICIES, Log, bits, opened, shop, store_of

RULES: dict[str, Any] = {"range": [0, 1], "default": 0.0, "wait_seconds": 60}


def serving(
    scenario: Callable[[Services], Awaitable[None]], policies: list[str] | None = None
) -> None:
    async def play(services: Services) -> None:
        chosen = {name: POLICIES[name] for name in policies or ["linucb"]}
        await define(services, shop(**chosen) | {"reward": RULES})
        await scenario(services)

    run_virtual(live(MemoryStore(), play))


async def shown(services: Services, count: int, top_k: int = 1, **more: Any) -> list[Answer]:
    """Decisions of one policy."""
    asked = [SelectRequest({"pet": "cat"}, "shop", top_k=top_k, **more) for _ in range(count)]
    return [await services.selector.select(one) for one in asked]


async def expire_due(services: Services) -> None:
    """Settle all decisions once they are due."""
    await asyncio.sleep(RULES["wait_seconds"] + 1)
    while await services.expiry.expire_due():
        pass


async def blocks_of(services: Services) -> list[Expired]:
    records = await services.store.read("shop", 0, 1_000)
    events = [decode_event(record.payload) for record in records]
    return [event for event in events if isinstance(event, Expired)]


async def clean(services: Services) -> bool:
    return (await Audit(services.store, "shop").run()).clean


def decisions_of(block: Expired) -> list[str]:
    return [one.decision for one in block.decisions]


def test_decisions_that_are_due_are_settled_as_one_event() -> None:
    async def scenario(services: Services) -> None:
        answers = await shown(services, 30)
        await expire_due(services)
        [block] = await blocks_of(services)
        assert decisions_of(block) == [one.decision.id for one in answers]
        assert await services.store.due("shop", 1e12, 100) == []
        assert state_of(services).reward_sums["linucb"].count == 30
        assert await clean(services)

    serving(scenario)


@pytest.mark.parametrize(("count", "top_k", "sizes"), [(230, 1, [100, 100, 30]), (40, 4, [25, 15])])
def test_a_block_has_a_bound_of_arms(count: int, top_k: int, sizes: list[int]) -> None:
    async def scenario(services: Services) -> None:
        await shown(services, count, top_k)
        await expire_due(services)
        found = await blocks_of(services)
        assert [len(block.decisions) for block in found] == sizes
        assert max(len(block.decisions) * top_k for block in found) <= BLOCK_ARMS

    serving(scenario)


def test_a_backlog_is_settled_at_once_and_few_decisions_cost_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "EXPIRE_BATCH", 20)

    async def scenario(services: Services) -> None:
        looks, look = list[int](), services.store.due

        async def counted(experiment: str, now: float, limit: int) -> list[bytes]:
            found = await look(experiment, now, limit)
            looks.append(len(found))
            return found

        await shown(services, 50)
        await asyncio.sleep(RULES["wait_seconds"] + 1)
        monkeypatch.setattr(services.store, "due", counted)
        running = asyncio.create_task(services.expiry.run())
        await asyncio.sleep(services.settings.expiry_seconds + 0.5)
        assert looks == [20, 20, 10]
        running.cancel()

    serving(scenario)


def test_a_block_is_of_one_policy() -> None:
    async def scenario(services: Services) -> None:
        answers = await shown(services, 20)
        await expire_due(services)
        found = await blocks_of(services)
        assert {block.policy for block in found} == {"linucb", "popularity"}
        assert len(found) == 2
        policies = {one.decision.id: one.decision.policy for one in answers}
        assert all(policies[one] == block.policy for block in found for one in decisions_of(block))
        assert await clean(services)

    serving(scenario, ["linucb", "popularity"])


def test_decisions_that_were_rewarded_meanwhile_are_taken_out_of_the_block() -> None:
    """A reward of one arm of a slate leaves the other to the default."""

    async def scenario(services: Services) -> None:
        answers = await shown(services, 6, top_k=2)
        rewarded, half, *rest = answers
        first, second = (arm.arm for arm in rewarded.decision.shown)
        await services.settlements.reward(
            RewardRequest(rewarded.token, rewards={first: 1.0, second: 1.0})
        )
        [first, second] = [arm.arm for arm in half.decision.shown]
        await services.settlements.reward(RewardRequest(half.token, rewards={first: 1.0}))
        await services.expiry.expire(state_of(services), *(one.decision for one in answers))
        whole, alone = await blocks_of(services)
        assert decisions_of(whole) == [one.decision.id for one in rest]
        assert decisions_of(alone) == [half.decision.id]
        assert [one.arm for one in alone.decisions[0].settled] == [second]
        assert await services.store.due("shop", 1e12, 100) == []
        assert state_of(services).reward_sums["linucb"].count == 12
        assert await clean(services)

    serving(scenario)


def test_of_two_processes_that_expire_the_same_decisions_one_settles_them() -> None:
    async def scenario(services: Services) -> None:
        answers = await shown(services, 9)
        decisions = [one.decision for one in answers]
        expire, state = services.expiry.expire, state_of(services)
        await asyncio.gather(expire(state, *decisions), expire(state, *reversed(decisions)))
        assert len(await blocks_of(services)) == 1
        assert state.reward_sums["linucb"].count == 9
        assert await clean(services)

    serving(scenario)


def test_a_reward_after_its_block_replaces_the_default() -> None:
    async def scenario(services: Services) -> None:
        answers = await shown(services, 5)
        await expire_due(services)
        receipt = await services.settlements.reward(RewardRequest(answers[2].token, reward=1.0))
        assert receipt.status == "corrected"
        tally = state_of(services).reward_sums["linucb"]
        assert (tally.count, tally.total) == (5, 1.0)
        assert await clean(services)

    serving(scenario)


def test_processes_share_the_decisions_among_them() -> None:
    """Each decision falls to one of those that live; those of a dead one to the others."""

    class Shared(MemoryStore):
        shared = True

    async def scenario() -> None:
        store = Shared()
        processes = [Presence(store, Random(seed)) for seed in range(3)]
        for _ in range(2):  # each knows the others after the second
            for process in processes:
                await process.beat()
        rows = [b"row of decision %d" % number for number in range(300)]
        owners = [[one.owns(row) for one in processes] for row in rows]
        assert all(sum(each) == 1 for each in owners)
        assert all(sum(own) > 60 for own in zip(*owners, strict=True))
        await processes[0].leave()
        for process in processes[1:]:
            await process.beat()
        assert all(sum(one.owns(each) for one in processes[1:]) == 1 for each in rows)
        assert Presence(MemoryStore()).owns(b"any")

    run_virtual(scenario())


# -- readers of the log ----------------------------------------------------------------------------


def block(log: Log, policy: str = "p", size: int = 5) -> Expired:
    log.expire(policy, [["toy1"]] * size, {"pet": "cat", "age": 1.0})
    event = log.records[-1][0]
    assert isinstance(event, Expired)
    return event


def test_what_is_read_back_of_a_block_is_what_was_put_into_it() -> None:
    event = block(opened({"kind": "linucb"}))
    assert decode_event(encode_event(event)) == event
    assert Expired.of(event.defaults) == event
    assert settlements_of(event) == event.defaults
    assert all(isinstance(one, Default) and one.defaulted for one in event.defaults)


@pytest.mark.parametrize("kind", ["linucb", "lints_disjoint", "popularity", "neural", "forgetful"])
def test_a_block_teaches_what_its_defaults_teach_one_by_one(kind: str) -> None:
    """To the last bit; a head that forgets does so once, after the block."""
    whole, single = (opened(POLICIES[kind] | {"decay_every": 5}) for _ in range(2))
    for _ in range(3):
        event = block(whole)
        for one in event.defaults:
            single.write(one)
    heads = [one.state.learners["p"].active.head for one in (whole, single)]
    assert heads[0] is not None
    assert heads[1] is not None
    assert digest(heads[0]) == digest(heads[1])


def test_an_erased_decision_is_taken_out_of_its_block_and_the_others_stay() -> None:
    event = block(opened({"kind": "linucb"}))
    first, second, *rest = decisions_of(event)
    left = event.without({second})
    assert isinstance(left, Expired)
    assert decisions_of(left) == [first, *rest]
    assert (left.erased, left.erased_inline) == (1, 0)
    again = left.without({first})
    assert isinstance(again, Expired)
    assert again.erased == 2
    stone = again.without(set(rest))
    assert isinstance(stone, Tombstone)
    assert (stone.rewards, stone.policy) == (5, "p")


def test_no_fold_passes_a_block_of_which_some_was_erased() -> None:
    log = opened({"kind": "linucb"})
    event = block(log)
    left = event.without({decisions_of(event)[0]})
    state = State("shop")
    state.apply(1, log.records[0][0])
    assert not state.runs_with(left)
    with pytest.raises(LogGap, match="position 2 was erased"):
        state.apply(2, left)


def test_a_version_that_catches_up_folds_what_is_left_of_a_block() -> None:
    """Whether it reads the block, or what the erasure has left of it."""
    log = opened(POLICIES["neural"])
    event = block(log)
    learner, gone = log.state.learners["p"], {decisions_of(event)[1]}
    left = event.without(gone)
    found = []
    for read in (event, left):
        version = learner.version(1, learner.active.encoder)
        version.begins = 1
        log.state.catch_up(learner, version, 2, read, ErasedParts({2}, gone))
        assert version.settled == 4
        assert version.head is not None
        found.append(digest(version.head))
    assert found[0] == found[1]
    with pytest.raises(LogGap):
        log.state.catch_up(
            learner, learner.version(1, learner.active.encoder), 2, left, ErasedParts()
        )


def test_a_training_reads_what_is_left_of_a_block_and_counts_the_rest() -> None:
    log = opened(POLICIES["neural"])
    event = block(log)
    log.records[1] = event.without({*decisions_of(event)[:2]}), None
    store, learner = store_of(log), log.state.learners["p"]
    found = run_virtual(collect(store, log.state, learner))
    assert found.rewards == 5
    assert len(found.memory) == 3


def test_two_erasures_of_one_block_bring_nothing_back() -> None:
    """Each replaces the block by what is left of the one that it has read."""

    async def scenario(services: Services) -> None:
        answers = [
            *await shown(services, 3, unit="ann"),
            *await shown(services, 3, unit="bob"),
            *await shown(services, 3, unit="eve"),
        ]
        await expire_due(services)
        await asyncio.gather(*(services.eraser.erase(unit, "") for unit in ("ann", "bob")))
        [left] = await blocks_of(services)
        assert decisions_of(left) == [one.decision.id for one in answers[6:]]
        assert left.erased == 6
        assert await clean(services)
        kept = State.restore((await services.store.snapshots("shop"))[0])
        assert bits(kept) == bits(state_of(services))
        await services.eraser.erase("eve", "")
        assert await blocks_of(services) == []
        assert await clean(services)

    serving(scenario)
