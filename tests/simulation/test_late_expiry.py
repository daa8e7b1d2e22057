"""Decisions that expire when their marks may be gone: nobody was there for longer than that."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from service.app import assemble
from service.definition.select_request import SelectRequest
from service.http.services import Services
from service.serving.settlement import RewardRequest
from service.settings import Settings
from service.state.events import outcomes
from service.state.fold import State
from tests.simulation.disk import Disk, Line
from tests.simulation.experiment import ACCEPT_S, WAIT_S, definition_of
from tests.simulation.process import NAME
from tests.support.clock import VirtualClock, run_virtual

LATE_S = WAIT_S + ACCEPT_S + 1_000.0


Scenario = Callable[[Services, State, Callable[[], None]], Awaitable[None]]
"""Its last argument lets so much time pass that all is late."""


def settled(scenario: Scenario) -> list[tuple[str, bool]]:
    """The arms that the log settles, each with whether it was settled before."""

    clock = VirtualClock()

    async def run() -> list[tuple[str, bool]]:
        disk = Disk(shared=False, now=clock.time)
        services = assemble(
            Settings(store="memory://"), Line(disk, Random(0)), [bytes(32)], clock=clock
        )
        await services.journal.open()
        state, _ = await services.admin.define(NAME, definition_of("first"))
        await scenario(services, state, lambda: clock.skip(LATE_S))
        await services.journal.close()
        told = [one for event in disk.events(NAME, 1) for one in outcomes(event)]
        return sorted((one.settled.arm, one.was is not None) for one in told)

    return run_virtual(run(), clock)


def test_two_replicas_that_come_back_late_expire_a_decision_once() -> None:
    shown: list[str] = []

    async def scenario(services: Services, state: State, jump: Callable[[], None]) -> None:
        answer = await services.engine.select(SelectRequest({"pet": "cat"}, NAME))
        shown.extend(one.arm for one in answer.decision.shown)
        jump()
        expire = services.settlements.expire
        await asyncio.gather(expire(state, answer.decision), expire(state, answer.decision))

    assert settled(scenario) == [(shown[0], False)]


def test_a_slate_rewarded_in_part_expires_late_in_its_other_arm_alone() -> None:
    shown: list[str] = []

    async def scenario(services: Services, state: State, jump: Callable[[], None]) -> None:
        answer = await services.engine.select(SelectRequest({"pet": "cat"}, NAME, top_k=2))
        shown.extend(one.arm for one in answer.decision.shown)
        await services.settlements.reward(RewardRequest(answer.token, rewards={shown[0]: 1.0}))
        jump()
        await services.settlements.expire_due()

    assert settled(scenario) == sorted((arm, False) for arm in shown)
