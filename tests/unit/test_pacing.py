"""Requests take turns: a burst of one caller is spread over turns of the loop."""

import asyncio

from service.http.pacing import TURN_SECONDS, Pacing
from tests.support.clock import run_virtual


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started(*callers: str, seconds_each: float) -> list[list[str]]:
    """Who started in each turn of the loop, where all ask at once and each works so long."""
    clock, turns = Clock(), list[list[str]]()

    async def request(pacing: Pacing, caller: str) -> None:
        await pacing.start(caller)
        turns[-1].append(caller)
        clock.now += seconds_each

    async def play() -> list[list[str]]:
        pacing = Pacing(clock)
        tasks = [asyncio.create_task(request(pacing, caller)) for caller in callers]
        while not all(task.done() for task in tasks):
            turns.append([])
            await asyncio.sleep(0)
        return [turn for turn in turns if turn]

    return run_virtual(play())


def test_short_requests_share_a_turn() -> None:
    assert started(*"aaaa", seconds_each=TURN_SECONDS / 10) == [["a"] * 4]


def test_long_requests_have_a_turn_each() -> None:
    assert started(*"aaaa", seconds_each=2 * TURN_SECONDS) == [["a"]] * 4


def test_a_caller_does_not_wait_for_the_whole_burst_of_another() -> None:
    order = [caller for turn in started(*"aaaaaab", seconds_each=1.0) for caller in turn]
    assert order.index("b") <= 2
    assert order.count("a") == 6


def test_a_request_that_has_gone_is_passed_over() -> None:
    async def play() -> None:
        clock = Clock()
        pacing = Pacing(clock)

        async def long() -> None:
            await pacing.start("a")
            clock.now += 1.0

        first = asyncio.create_task(long())
        gone = asyncio.create_task(pacing.start("b"))
        stays = asyncio.create_task(pacing.start("c"))
        await first
        assert not gone.done()
        gone.cancel()
        async with asyncio.timeout(5):
            await stays

    run_virtual(play())
