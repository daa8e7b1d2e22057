"""Stops of chaos: told from kills and from ends that nobody asked for; and what the report says."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from tests.chaos import campaign as campaigning
from tests.chaos.campaign import Campaign, Goal, Result, Work
from tests.chaos.processes import Replica
from tests.chaos.report import summary, table

SAYS_WHEN_UP = "print('up', flush=True); "
TAKES_IT = "signal.signal(signal.SIGTERM, lambda *_: sys.exit({status})); "
IGNORES_IT = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def stub(folder: Path, way: str) -> Replica:
    """A program in place of a service."""
    made = Replica("service", folder, "memory://")
    program = f"import signal, sys, time; {way}{SAYS_WHEN_UP}time.sleep(60)"
    made._command = [sys.executable, "-c", program]
    return made


def kept(process: Replica, work: Callable[[], Awaitable[None]]) -> None:
    """Run while the process is started again whenever it ends."""

    async def run() -> None:
        keeper = asyncio.create_task(process.keep())
        try:
            await until(lambda: process.said("up") == 1)
            process._was_ready = True
            await work()
        finally:
            keeper.cancel()
            process.kill()

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    deadline = monotonic() + 20
    while not true():
        assert monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", [0, 3])
def test_a_stop_has_the_status_of_its_end_and_the_process_is_started_again(
    tmp_path: Path, status: int
) -> None:
    process = stub(tmp_path, TAKES_IT.format(status=status))

    async def work() -> None:
        assert process.terminate()
        assert not process.terminate()  # it was told so
        await until(lambda: process.said("up") == 2)
        assert [stop.status for stop in process.stops] == [status]
        assert (process.ended, process.deserted, process.stopping) == ([], 0, False)

    kept(process, work)


def test_an_end_that_nobody_asked_for_is_no_stop(tmp_path: Path) -> None:
    process = stub(tmp_path, f"{SAYS_WHEN_UP}sys.exit(3); ")

    async def work() -> None:
        await until(lambda: process.said("up") == 2)
        assert process.stops == []
        assert set(process.ended) == {3}

    kept(process, work)


def test_a_kill_before_the_end_of_a_stop_is_a_kill(tmp_path: Path) -> None:
    process = stub(tmp_path, IGNORES_IT)

    async def work() -> None:
        assert process.terminate()
        await asyncio.sleep(0.1)
        assert process.stopping
        assert process.kill()
        assert not process.stopping
        await until(lambda: process.said("up") == 2)
        assert (process.stops, process.ended) == ([], [])

    kept(process, work)


def test_a_service_that_was_not_ready_yet_is_not_told_to_stop(tmp_path: Path) -> None:
    process = stub(tmp_path, TAKES_IT.format(status=0))

    async def work() -> None:
        assert process.kill()
        await until(lambda: process.said("up") == 2)
        assert not process.terminate()

    kept(process, work)


@contextmanager
def campaign_of(replica: Replica, folder: Path) -> Iterator[Campaign]:
    campaign = Campaign("sqlite", folder, "memory://", [replica], replica, Random(1))
    try:
        yield campaign
    finally:
        campaign._ledger.close()


def test_a_service_that_does_not_stop_in_time_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigning, "GRACE_S", 0.1)
    replica = stub(tmp_path, IGNORES_IT)

    async def work() -> None:
        with campaign_of(replica, tmp_path) as campaign:
            await campaign.stopped([replica])
        assert campaign.result.violations == ["service had not ended 0 s after its SIGTERM"]

    kept(replica, work)


@pytest.mark.parametrize(("status", "stops"), [(0, 1), (3, 0)])
def test_a_stop_counts_where_its_status_is_0_and_else_is_a_violation(
    tmp_path: Path, status: int, stops: int
) -> None:
    replica = stub(tmp_path, TAKES_IT.format(status=status))

    async def work() -> None:
        with campaign_of(replica, tmp_path) as campaign:
            await campaign.stopped([replica])
            campaign._judge_ends()
        assert campaign.result.stops == stops
        assert len(campaign.result.violations) == 1 - stops
        assert 0 < campaign.result.slowest_stop_seconds < campaigning.GRACE_S

    kept(replica, work)


def test_a_work_that_cannot_be_undone_at_the_end_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ZeroDivisionError

    async def run() -> None:
        with campaign_of(stub(tmp_path, TAKES_IT), tmp_path) as campaign:
            await campaign._under([work], Goal(seconds=0.1), monotonic())

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_works_go_on_together_until_the_goal_and_end_in_order(tmp_path: Path, fails: bool) -> None:
    begun, undone = Counter[str](), Counter[str]()

    def named(name: str) -> Work:
        async def work() -> None:
            begun[name] += 1
            try:
                await asyncio.sleep(0.05)
                if fails and name == "two":
                    raise ZeroDivisionError
            finally:
                undone[name] += 1

        return work

    async def run() -> None:
        with campaign_of(stub(tmp_path, TAKES_IT), tmp_path) as campaign:
            await campaign._under([named("one"), named("two")], Goal(seconds=0.3), monotonic())

    if fails:
        with pytest.raises(ZeroDivisionError):
            asyncio.run(run())
    else:
        asyncio.run(run())
        assert min(begun["one"], begun["two"]) > 1
    assert begun == undone


# -- the report --------------------------------------------------------------------------------


def results() -> list[Result]:
    own = Result("sqlite", kills=Counter(service=3, trainer=1), stops=2, acknowledged=10)
    other = Result("redis", kills=Counter(service=4, redis=2), stops=1, acknowledged=5)
    own.heads_equal = other.heads_equal = True
    other.redis_faults, other.network_faults = Counter(cut=6), Counter({"one way": 7})
    other.hosts, other.slowest_stop_seconds = "namespaces", 1.25
    return [own, other]


def test_the_summary_adds_up_and_counts_stops_apart_from_kills() -> None:
    told = summary(results(), "passed", [], seed=1)
    expected = {
        "kills": 10,
        "stops": 3,
        "redis_faults": 6,
        "network_faults": 7,
        "acknowledged": 15,
        "lost": 0,
        "doubled": 0,
        "heads_equal": True,
        "hosts": "namespaces",
    }
    assert {key: told[key] for key in expected} == expected
    assert json.loads(json.dumps(told))["campaigns"]["sqlite"]["hosts"] == "loopback"


def test_the_table_says_where_the_hosts_were_and_why() -> None:
    found = results()
    lines = table(found, summary(found, "passed", [], seed=1)).splitlines()
    assert "hosts: namespaces" in lines
    assert "network faults: one way 7" in lines
    assert [line.split() for line in lines if line.startswith("SIGTERM")] == [
        ["SIGTERM", "of", "service", "2", "1", "3"]
    ]
    found[1].hosts, found[1].loopback_because = "loopback", "there is no program ip"
    lines = table(found, summary(found, "passed", [], seed=1)).splitlines()
    assert "hosts: loopback (there is no program ip)" in lines
