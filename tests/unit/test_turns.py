"""One at a time, each tenant in his turn."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Busy
from service.evaluation.turns import Turns
from tests.support.clock import run_virtual


async def ask(turns: Turns, asked: str, most_at_work: list[int]) -> list[tuple[str, int]]:
    """By these tenants at once; who had which turn, and how many he was told to wait for."""
    had: list[tuple[str, int]] = []
    at_work = 0

    async def one(tenant: str) -> None:
        nonlocal at_work
        async with turns.turn(tenant) as ahead:
            at_work += 1
            most_at_work.append(at_work)
            await asyncio.sleep(0)
            had.append((tenant, ahead))
            at_work -= 1

    await asyncio.gather(*map(one, asked))
    return had


def test_a_tenant_who_asks_for_many_has_every_second_turn_beside_one_other() -> None:
    had = run_virtual(ask(Turns(9), "aaaaab", []))
    assert "".join(tenant for tenant, _ in had) == "abaaaa"
    assert "".join(t for t, _ in run_virtual(ask(Turns(9), "aaabbbcc", []))) == "abcabcab"


@given(st.text("abc", min_size=1, max_size=12))
def test_all_have_their_turn_one_at_a_time_and_who_asked_last_is_told_which(asked: str) -> None:
    at_work: list[int] = []
    had = run_virtual(ask(Turns(99), asked, at_work))
    assert sorted(tenant for tenant, _ in had) == sorted(asked)
    assert set(at_work) == {1}
    last = max(index for index, (tenant, _) in enumerate(had) if tenant == asked[-1])
    assert had[last][1] == last  # nobody came after he was told


def test_beyond_so_many_one_tenant_is_refused_and_another_is_not() -> None:
    async def run() -> None:
        turns = Turns(2)
        async with turns.turn("a"):
            waiting = [asyncio.create_task(ask(turns, "a", [])) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Busy, match="2 of this experiment wait already"):
                await ask(turns, "a", [])
            waiting.append(asyncio.create_task(ask(turns, "b", [])))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert not turns.busy

    run_virtual(run())


def test_who_goes_away_is_passed_over_whenever_he_goes() -> None:
    async def run(called: bool) -> None:
        turns = Turns(9)
        async with turns.turn("a"):
            gone = asyncio.create_task(ask(turns, "b", []))
            stays = asyncio.create_task(ask(turns, "c", []))
            await asyncio.sleep(0)
            if not called:
                gone.cancel()
                await asyncio.sleep(0)
        gone.cancel()
        assert await asyncio.wait_for(stays, 1.0)
        assert not turns.busy
        assert gone.cancelled()

    run_virtual(run(called=False))
    run_virtual(run(called=True))
