"""From a decision's token to its events, in process: what later events say of earlier ones."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.definition.experiment import Definition
from service.definition.reward_request import RewardRequest
from service.definition.select_request import InlineArm, SelectRequest
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.security.token import TOKEN_CHARACTERS
from service.settings import Settings
from service.state.events import (
    AnyEvent,
    Corrected,
    Expired,
    Rewarded,
    decode_event,
)
from tests.support.clock import run_virtual
from tests.support.service import virtual_services
from tests.unit.folding import shop

PET = {"pet": "cat"}
LINUCB = {"kind": "linucb", "features": ["pet x kind"]}


def serving(scenario: Callable[[Services], Awaitable[None]], **reward: Any) -> None:
    """Run a scenario against the parts of a service over a store in memory."""

    async def run() -> None:
        settings = Settings(store="memory://", max_arms=200)
        services = virtual_services(settings, MemoryStore())
        await services.log.open()
        definition = shop(linucb=LINUCB) | {"reward": {"range": [0, 10], **reward}}
        try:
            await services.admin.define("shop", Definition.model_validate(definition), "")
            await scenario(services)
        finally:
            await services.log.close()

    run_virtual(run())


async def events_of(services: Services) -> list[AnyEvent]:
    return [decode_event(r.payload) for r in await services.store.read("shop", 0, 100)]


def b_of(services: Services) -> float:
    """The sum of all rewards in the head, which learns them in spans of their range."""
    state = services.log.replicas.state("shop")
    assert state is not None
    head: Any = state.learners["linucb"].active.head
    return 10 * float(head.b.sum())


async def told(services: Services, token: str, **outcome: Any) -> str:
    return (await services.settlements.reward(RewardRequest(token, **outcome))).status


def test_contributions_add_up_and_each_says_since_when_the_arm_was_learned() -> None:
    """1 at position 2, then 2 and 4: the head's b is 1, 3, 7, and `since` stays 2."""

    async def scenario(services: Services) -> None:
        answer = await services.selector.select(SelectRequest(PET))
        for reward, total in ((1.0, 1.0), (2.0, 3.0), (4.0, 7.0)):
            status = await told(services, answer.token, reward=reward, reward_id=f"order-{reward}")
            assert (status, b_of(services)) == ("accepted", total)
        _, first, second, third = await events_of(services)
        assert isinstance(first, Rewarded)
        assert isinstance(second, Corrected)
        assert isinstance(third, Corrected)
        for event, was in ((second, 1.0), (third, 3.0)):
            assert [(one.was, one.since) for one in event.settled] == [(was, 2)]
        assert third.settled[0].reward == 7.0

    serving(scenario, aggregation="sum")


def test_a_reward_after_the_default_replaces_it_and_says_since_when() -> None:
    async def scenario(services: Services) -> None:
        answer = await services.selector.select(SelectRequest(PET))
        state = await services.experiments.find("shop")
        await services.expiry.expire(state, answer.decision)
        assert b_of(services) == 5.0
        assert await told(services, answer.token, reward=2.0) == "corrected"
        assert b_of(services) == 2.0
        _, default, corrected = await events_of(services)
        assert isinstance(default, Expired)
        assert isinstance(corrected, Corrected)
        assert [(one.was, one.since) for one in corrected.settled] == [(5.0, 2)]

    serving(scenario, default=5.0)


def test_a_slate_settled_in_parts_is_new_for_one_arm_and_known_of_the_other() -> None:
    """Arm one at position 2; then both under a new id: was and since None for the second."""

    async def scenario(services: Services) -> None:
        answer = await services.selector.select(SelectRequest(PET, top_k=2))
        one, two = (shown.arm for shown in answer.decision.shown)
        await told(services, answer.token, rewards={one: 1.0}, reward_id="a")
        await told(services, answer.token, rewards={one: 3.0, two: 2.0}, reward_id="b")
        assert b_of(services) == 5.0
        *_, both = await events_of(services)
        assert isinstance(both, Corrected)
        assert {each.arm: each.since for each in both.settled} == {
            one: 2,
            two: None,
        }

    serving(scenario, aggregation="last")


def test_a_late_reward_of_what_a_new_head_never_saw_leaves_it_at_the_prior() -> None:
    async def scenario(services: Services) -> None:
        answer = await services.selector.select(SelectRequest(PET))
        state = await services.experiments.find("shop")
        await services.expiry.expire(state, answer.decision)
        definition = shop(linucb=LINUCB | {"ridge": 2.0}) | {"reward": {"range": [0, 10]}}
        await services.admin.define("shop", Definition.model_validate(definition), "")
        assert await told(services, answer.token, reward=9.0) == "corrected"
        assert b_of(services) == 0.0

    serving(scenario)


@pytest.mark.parametrize("arms", [3, 40, 100])
def test_a_slate_of_any_length_can_be_rewarded(arms: int) -> None:
    """A token has room for what 3 arms need, not for the ids of 40: the row has them."""

    async def scenario(services: Services) -> None:
        inline = [InlineArm(f"a rather long name {n:03}", {"kind": "toy"}) for n in range(arms)]
        answer = await services.selector.select(SelectRequest(PET, arms=inline, top_k=arms))
        assert len(answer.token) <= TOKEN_CHARACTERS
        clicked = answer.decision.shown[1].arm
        assert await told(services, answer.token, feedback="cascade", clicked=clicked) == "accepted"
        assert b_of(services) == 10.0

    serving(scenario)
