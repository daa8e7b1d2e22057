"""Decisions that expire when their marks may be gone: nobody was there for longer than that."""

import asyncio
from itertools import chain
from random import Random

import pytest

from service.app import assemble
from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.settings import Settings
from service.state.events import settlements_of
from tests.simulation.disk import Disk, Line
from tests.simulation.experiment import ACCEPT_S, WAIT_S, definition_of
from tests.simulation.process import NAME
from tests.support.clock import VirtualClock, run_virtual

LATE_S = WAIT_S + ACCEPT_S + 1_000.0


@pytest.mark.parametrize("rewarded", [0, 1])
def test_two_replicas_that_come_back_late_expire_each_open_arm_once(rewarded: int) -> None:
    """A slate of two arms; the first may have got its reward in time."""
    clock, disk = VirtualClock(), Disk(shared=False, now=lambda: 0.0)

    async def run() -> None:
        services = assemble(
            Settings(store="memory://"), Line(disk, Random(0)), [bytes(32)], clock=clock
        )
        await services.log.open()
        state, _ = await services.admin.define(NAME, definition_of("first"), "")
        answer = await services.selector.select(SelectRequest({"pet": "cat"}, NAME, top_k=2))
        shown = [one.arm for one in answer.decision.shown]
        if rewarded:
            await services.settlements.reward(RewardRequest(answer.token, rewards={shown[0]: 1.0}))
        clock.skip(LATE_S)
        expire = services.expiry.expire
        await asyncio.gather(expire(state, answer.decision), expire(state, answer.decision))
        await services.log.close()
        settlements = chain.from_iterable(map(settlements_of, disk.events(NAME, 1)))
        settled = [one for each in settlements for one in each.settled]
        assert sorted(one.arm for one in settled) == sorted(shown)
        assert [one.was for one in settled] == [None, None]

    run_virtual(run(), clock)
