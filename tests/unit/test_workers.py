"""How many workers there are, and the line between a service and one of them."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from service.errors import ConfigurationError
from service.server.line import (
    CountsAsked,
    CountsTold,
    Line,
    Message,
    Reload,
    ServesNow,
    StartWork,
    Stop,
    receive_begin,
)
from service.server.workers import usable_cores, worker_count
from service.settings import Settings

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux alone")


@linux
def test_auto_takes_a_worker_for_each_core() -> None:
    cores = len(os.sched_getaffinity(0))
    assert worker_count(Settings(workers="auto", store="redis://127.0.0.1/0")) <= cores
    assert worker_count(Settings(workers="auto", store="memory://")) == 1
    assert worker_count(Settings(workers=3, store="sqlite:///forage.db")) == 3
    assert worker_count(Settings(store="memory://")) == 1


@linux
@pytest.mark.parametrize(
    ("quota", "most"), [("150000 100000\n", 1), ("50000 100000\n", 1), ("max 100000\n", 10_000)]
)
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str, most: int) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert usable_cores(file) == min(most, len(os.sched_getaffinity(0)))
    assert usable_cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_a_store_of_one_process_takes_one() -> None:
    with pytest.raises(ConfigurationError, match="no other process can read a memory:// store"):
        worker_count(Settings(workers=2, store="memory://"))


def test_other_systems_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigurationError, match="only Linux shares the connections to a port"):
        worker_count(Settings(workers=2))
    assert worker_count(Settings(workers="auto")) == 1


def test_a_worker_begins_with_the_settings_of_its_service() -> None:
    settings = Settings(port=0, token_keys="MDEyMzQ1Njc4OWFiY2RlZg==").fixed(port=8123, workers=2)
    ours, its = socket.socketpair()

    async def send() -> None:
        line = await Line.over(ours)
        line.send(StartWork.of(settings, count=2, early=True, trainer_key="k", checkpoints=None))
        await asyncio.sleep(0)
        line.close()

    asyncio.run(send())
    begin = receive_begin(its)
    assert (begin.count, begin.early, begin.trainer_key) == (2, True, "k")
    read = begin.read_settings()
    assert read == settings
    assert read.read_again().port == 8123  # a free one was taken, and stays
    with pytest.raises(EOFError):
        receive_begin(its)
    its.close()


def over_a_line(talk: Callable[[Line, Line], Awaitable[None]]) -> None:
    async def opened() -> None:
        ends = socket.socketpair()
        one, other = await Line.over(ends[0]), await Line.over(ends[1])
        await talk(one, other)
        one.close()
        other.close()

    asyncio.run(opened())


def test_messages_come_in_order_until_the_other_side_ends() -> None:
    sent: list[Message] = [ServesNow(["shop"]), Reload(), Stop()]

    async def talk(one: Line, other: Line) -> None:
        for message in sent:
            one.send(message)
        one.close()
        assert [message async for message in other.messages()] == sent
        other.send(Stop())  # lost, and no error
        with pytest.raises(TimeoutError):
            await other.ask("metrics", 60.0)

    over_a_line(talk)


def test_each_question_has_its_answer() -> None:
    async def talk(one: Line, other: Line) -> None:
        async def answer() -> None:
            asked = []
            async for message in other.messages():
                assert isinstance(message, CountsAsked)
                asked.append(message)
                if len(asked) == 2:
                    for each in reversed(asked):
                        other.send(CountsTold(each.number, [each.about.encode()]))

        async def hear() -> None:
            async for _ in one.messages():
                raise AssertionError

        tasks = [asyncio.create_task(answer()), asyncio.create_task(hear())]
        found = await asyncio.gather(one.ask("metrics", 60.0), one.ask("decisions", 60.0))
        assert found == [[b"metrics"], [b"decisions"]]
        waiting = asyncio.create_task(one.ask("metrics", 60.0))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(TimeoutError):  # at once
            await waiting
        await asyncio.gather(*tasks)

    over_a_line(talk)
