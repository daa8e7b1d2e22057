"""Arms below the click of a cascade are not learned from: in time, late, and said twice."""

from typing import Any

import numpy as np
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.decide.select import Answer
from service.definition.select_request import SelectRequest
from service.errors import Conflict
from service.http.services import Services
from service.observe.explain import explain
from service.offline.audit import Audit
from service.state.events import (
    AnyEvent,
    Corrected,
    Learned,
    Rewarded,
    settlements_of,
)
from service.state.fold import State
from tests.unit.folding import bits, replay
from tests.unit.test_settlement import PET, events_of, serving, told


def state_of(services: Services) -> State:
    state = services.log.replicas.state("shop")
    assert state is not None
    return state


async def shown(services: Services, *, expired: bool = False) -> tuple[Answer, list[str]]:
    """Three arms; expired: the default of 0 was learned of each."""
    answer = await services.selector.select(SelectRequest(PET, top_k=3))
    if expired:
        await services.expiry.expire(state_of(services), answer.decision)
    return answer, [arm.arm for arm in answer.decision.shown]


async def clicked(services: Services, answer: Answer, arm: str | None, **more: Any) -> str:
    return await told(services, answer.token, feedback="cascade", clicked=arm, **more)


async def learned(services: Services, answer: Answer) -> dict[str, float]:
    found = await explain(services.log, services.store, answer.decision.id, "shop")
    return {each.arm: each.reward for each in found.learned}


def counts(services: Services) -> tuple[float, int, int, float]:
    """Settlements in the head, in the tally of the policy and in those of its arms; their sum."""
    state = state_of(services)
    head: Any = state.learners["linucb"].active.head
    tally, by_arm = state.reward_sums["linucb"], state.arm_reward_sums["linucb"].columns()
    assert tally.total == by_arm[1].sum()
    return head.n, tally.count, int(by_arm[0].sum()), tally.total


def of_a_decision(events: list[AnyEvent]) -> list[Learned]:
    return [one for event in events for one in settlements_of(event)]


async def sound(services: Services) -> None:
    """The log audits clean, and folds to this state."""
    records = [(event, None) for event in await events_of(services)]
    assert bits(replay(records)) == bits(state_of(services))
    assert (await Audit(services.store, "shop").run()).clean


def test_a_late_click_takes_the_default_of_the_arms_below_it_back() -> None:
    """Defaults of 0 for three arms, then a click (10) on the second: two settlements are left, and
    A is what those two make it."""

    async def scenario(services: Services) -> None:
        answer, (first, second, third) = await shown(services, expired=True)
        assert counts(services) == (3, 3, 3, 0)
        assert await clicked(services, answer, second) == "corrected"
        *_, event = await events_of(services)
        assert isinstance(event, Corrected)
        assert [(one.arm, one.was, one.since, one.learned) for one in event.settled] == [
            (first, 0.0, 2, 0.0),
            (second, 0.0, 2, 10.0),
            (third, 0.0, 2, None),
        ]
        assert counts(services) == (2, 2, 2, 10)
        head: Any = state_of(services).learners["linucb"].active.head
        rows = {arm.arm: arm.row for arm in answer.decision.shown}
        phi = state_of(services).learners["linucb"].active.phi_of([rows[first], rows[second]])
        assert np.array_equal(head.A, np.eye(len(head.A)) + phi.T @ phi)
        assert np.array_equal(head.b, phi[1])
        assert await learned(services, answer) == {first: 0.0, second: 10.0}
        await sound(services)

    serving(scenario)


def test_said_again_it_changes_nothing_and_another_click_is_another_value() -> None:
    async def scenario(services: Services) -> None:
        answer, (first, second, _) = await shown(services, expired=True)
        await clicked(services, answer, second)
        before = counts(services)
        assert await clicked(services, answer, second) == "duplicate"
        with pytest.raises(Conflict):
            await clicked(services, answer, first)
        assert counts(services) == before
        await sound(services)

    serving(scenario)


@pytest.mark.parametrize("late", [False, True])
def test_the_first_cascade_closes_the_arms_that_it_left_unseen(late: bool) -> None:
    """Under aggregation first a second one with another reward_id, and a reward by arm, are
    ignored; the default is a duplicate, which a replica may have set out with before."""

    async def scenario(services: Services) -> None:
        answer, (first, second, third) = await shown(services, expired=late)
        status = await clicked(services, answer, first, reward_id="one")
        assert status == ("corrected" if late else "accepted")
        assert counts(services) == (1, 1, 1, 10)
        assert await clicked(services, answer, third, reward_id="two") == "ignored"
        assert await clicked(services, answer, None, reward_id="three") == "ignored"
        assert await told(services, answer.token, rewards={second: 5.0}) == "ignored"
        await services.expiry.expire(state_of(services), answer.decision)
        assert counts(services) == (1, 1, 1, 10)
        assert await learned(services, answer) == {first: 10.0}
        await sound(services)

    serving(scenario)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "last"])
def test_where_rewards_add_up_a_second_cascade_may_reach_further(
    aggregation: str, late: bool
) -> None:
    """The arms that were left unseen are settled by it for the first time."""

    async def scenario(services: Services) -> None:
        answer, (first, second, third) = await shown(services, expired=late)
        await clicked(services, answer, first, reward_id="one")
        assert counts(services) == (1, 1, 1, 10)
        assert await clicked(services, answer, second, reward_id="two") == "accepted"
        *_, event = of_a_decision(await events_of(services))
        assert isinstance(event, Corrected)
        position = 1 + len(of_a_decision(await events_of(services)))
        assert [(one.was, one.withdrawn) for one in event.settled] == [(10.0, False), (None, False)]
        earned = 20.0 if aggregation == "sum" else 10.0
        assert counts(services) == (2, 2, 2, earned)
        await clicked(services, answer, second, reward_id="three")
        *_, event = of_a_decision(await events_of(services))
        assert isinstance(event, Corrected)
        assert [one.since for one in event.settled] == [2, position]
        assert third not in await learned(services, answer)
        await sound(services)

    total = {"total": [0, 100]} if aggregation == "sum" else {}
    serving(scenario, aggregation=aggregation, **total)


def test_what_was_said_of_an_arm_by_name_stays() -> None:
    """The last arm was rewarded by name; a later click on the first leaves that, and closes the
    second."""

    async def scenario(services: Services) -> None:
        answer, (first, second, third) = await shown(services)
        await told(services, answer.token, rewards={third: 4.0}, reward_id="by name")
        assert await clicked(services, answer, first) == "accepted"
        assert await learned(services, answer) == {third: 4.0, first: 10.0}
        await services.expiry.expire(state_of(services), answer.decision)
        assert second not in await learned(services, answer)
        assert counts(services) == (2, 2, 2, 14)
        await sound(services)

    serving(scenario)


def test_a_cascade_that_says_nothing_new_still_closes_what_it_left_unseen() -> None:
    async def scenario(services: Services) -> None:
        answer, (first, *_) = await shown(services)
        await told(services, answer.token, rewards={first: 10.0}, reward_id="by name")
        assert await clicked(services, answer, first) == "accepted"
        *_, event = await events_of(services)
        assert isinstance(event, Rewarded)
        assert event.settled == []
        await services.expiry.expire(state_of(services), answer.decision)
        assert counts(services) == (1, 1, 1, 10)
        await sound(services)

    serving(scenario)


def test_an_evaluation_counts_the_first_slot_of_such_a_decision() -> None:
    async def scenario(services: Services) -> None:
        answer, (first, *_) = await shown(services, expired=True)
        await clicked(services, answer, first)
        store = services.store
        found = await evaluate(store, EvaluationRequest("shop", first_slot=True))
        assert (found.decisions, found.logged.value) == (1, 10.0)

    serving(scenario)
