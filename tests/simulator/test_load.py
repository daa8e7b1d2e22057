"""A load test against a server whose faults are known: what it counts, and from when."""

import asyncio
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from simulator_client.load import measure
from simulator_client.load_plan import Plan
from simulator_client.load_progress import Silent
from simulator_client.load_requests import head, rewards
from simulator_client.load_tally import Latencies, Tally
from simulator_client.load_worker import Worker

from .load_server import (
    CLOSE,
    LoadServer,
    chunked,
    ok,
    refusal,
    stalling,
)

pytestmark = pytest.mark.process

STALL_S = 0.6


def plan(url: str, **asked: Any) -> Plan:
    body = '{"context":{"basket":1.%08d}}'
    select = f"{head(url, '/select')}{len(body % 0)}\r\n\r\n{body}"
    standard: dict[str, Any] = {
        "addresses": [[int(socket.AF_INET), "127.0.0.1", int(url.rpartition(":")[2])]],
        "selects": [select], "numbered": True,
        "reward_head": head(url, "/reward"), "rewards": rewards({}), "connections": 4,
        "processes": 1, "warmup_s": 0.0, "seconds": 0.5, "rate": None, "spacing": "even",
        "rewards_per_select": 0.0, "rewards_alone": False, "timeout_s": 5.0, "seed": 1,
    }  # fmt: skip
    return Plan(**(standard | asked))


def loaded(server: LoadServer, **asked: Any) -> Tally:
    """In this process."""
    return Worker(plan(server.url, **asked), 0, lambda told: None).run(time.monotonic())


def beyond(latencies: Latencies, seconds: float) -> int:
    return sum(count for us, count in latencies.items() if us >= seconds * 1e6)


def test_a_stall_is_in_the_latency_of_all_that_fell_due_meanwhile() -> None:
    """200 a second are due for 1.4 s; the server stands still for 0.6 s. What fell due in its first
    half waited for 0.3 s or more: 60 requests."""
    with LoadServer(stalling(100, STALL_S)).running() as server:
        counted = loaded(server, rate=200.0, seconds=1.4, connections=8)
    assert len(counted.latencies["select"]) == len(server.selects) == 280
    assert beyond(counted.latencies["select"], STALL_S / 2) >= 55


def test_what_fell_due_while_the_client_was_held_up_until_after_the_end_is_sent() -> None:
    def hold_up(told: Any) -> None:
        if 0.2 < told["at_s"] < 0.8:
            time.sleep(0.8)

    with LoadServer().running() as server:
        worker = Worker(plan(server.url, rate=100.0, seconds=0.8), 0, hold_up)
        counted = worker.run(time.monotonic())
    assert len(server.selects) == len(counted.latencies["select"]) == 80
    assert beyond(counted.late, 0.4) >= 20


def test_who_waits_for_each_answer_hardly_sees_the_stall() -> None:
    """The omission that a rate is there against: 1 of hundreds of requests was slow."""
    with LoadServer(stalling(100, STALL_S)).running() as server:
        counted = loaded(server, connections=1, seconds=2.0)
    assert 1 <= beyond(counted.latencies["select"], STALL_S / 2) <= 5
    assert len(counted.latencies["select"]) > 200


def test_a_connection_is_used_again() -> None:
    with LoadServer().running() as server:
        counted = loaded(server, connections=3)
    assert server.connections == 3
    assert len(server.selects) >= 10
    assert sum(counted.seconds["select"]) == len(server.selects)


def test_at_a_rate_as_many_connections_are_opened_as_are_needed() -> None:
    with LoadServer().running() as server:
        counted = loaded(server, rate=50.0, seconds=1.0, connections=64)
    assert len(server.selects) == 50
    late = beyond(counted.latencies["select"], 0.0195)  # not answered when the next fell due
    assert server.connections <= 1 + late


def test_poisson_arrivals_come_at_the_rate() -> None:
    """100 are due in half a second; 40 less or more would be four standard deviations."""
    with LoadServer().running() as server:
        loaded(server, rate=200.0, spacing="poisson", connections=64)
    assert len(server.selects) == pytest.approx(100, abs=40)


def test_answers_in_chunks_count_and_their_tokens_are_found() -> None:
    server = LoadServer()
    server.form = chunked
    with server.running():
        counted = loaded(server, rewards_per_select=1.0)
    assert counted.answered["reward"] > 0
    assert not counted.errors
    assert server.connections == 4


@pytest.mark.parametrize("rate", [None, 400.0])
def test_each_token_is_rewarded_at_most_once_and_so_many_are(rate: float | None) -> None:
    with LoadServer().running() as server:
        loaded(server, rewards_per_select=0.2, rate=rate, connections=8)
    told = [each["decision_id"] for each in server.rewards]
    assert len(set(told)) == len(told)
    assert len(told) == pytest.approx(0.2 * len(server.selects), abs=9)
    assert {each["reward"] for each in server.rewards} == {0.0, 1.0}


def test_rewards_alone_are_of_the_decisions_of_the_warm_up() -> None:
    with LoadServer().running() as server:
        counted = loaded(
            server, rewards_alone=True, warmup_s=0.3, seconds=5.0, rewards_per_select=0.2
        )
    assert len(server.rewards) == len(server.selects) > 10
    assert len(counted.latencies["select"]) == 0
    assert len(counted.latencies["reward"]) == pytest.approx(len(server.rewards), abs=4)
    assert counted.counted_s[0] < 5.0


def test_a_refusal_is_an_error_by_its_status_and_has_no_latency() -> None:
    def every_third(path: str, number: int) -> bytes | None:
        return refusal(503) if path == "/select" and number % 3 == 0 else None

    with LoadServer(every_third).running() as server:
        counted = loaded(server)
    refused = len(server.selects) // 3
    assert counted.errors == {("select", "503"): refused}
    assert len(counted.latencies["select"]) == len(server.selects) - refused
    assert sum(counted.seconds["error"]) == refused


def test_a_connection_that_closes_without_an_answer_is_an_error_and_is_opened_anew() -> None:
    def every_tenth(path: str, number: int) -> bytes | None:
        return CLOSE if number % 10 == 0 else None

    with LoadServer(every_tenth).running() as server:
        counted = loaded(server)
    closed = len(server.selects) // 10
    assert counted.errors == {("select", "closed"): closed}
    assert closed <= server.connections <= 4 + closed


def test_a_connection_that_says_it_closes_is_no_error() -> None:
    server = LoadServer()
    server.form = lambda body: ok(body, "Connection: close")
    with server.running():
        counted = loaded(server)
    assert not counted.errors
    assert server.connections >= len(server.selects)


def test_where_nobody_listens_any_more_requests_are_refused() -> None:
    with LoadServer().running() as server:
        asked = plan(server.url, rate=40.0)
    counted = Worker(asked, 0, lambda told: None).run(time.monotonic())
    assert set(counted.errors) == {("select", "refused")}
    assert counted.errors["select", "refused"] == pytest.approx(20, abs=1)
    closed = Worker(replace(asked, rate=None), 0, lambda told: None).run(time.monotonic())
    assert 4 <= closed.errors["select", "refused"] <= 24, "it tries again ten times a second"


def test_no_answer_in_time_is_an_error_that_took_so_long() -> None:
    over = threading.Event()

    def hold(path: str, number: int) -> None:
        over.wait()

    with LoadServer(hold).running() as server:
        counted = loaded(server, rate=40.0, timeout_s=0.3)
        over.set()
    assert set(counted.errors) == {("select", "timeout")}
    assert counted.errors["select", "timeout"] == len(counted.latencies["select"])
    assert beyond(counted.latencies["select"], 0.3) == len(counted.latencies["select"])


def test_seconds_of_the_warm_up_do_not_count() -> None:
    with LoadServer(stalling(1, 0.3)).running() as server:
        counted = loaded(server, rate=50.0, warmup_s=1.0, seconds=1.0)
    assert len(server.selects) == 100
    assert len(counted.latencies["select"]) == 50
    in_second = counted.seconds["select"]  # by when answers came
    assert counted.answered["select"] == in_second[1] == pytest.approx(50, abs=20)
    assert sum(counted.seconds["select"]) == 100


def test_answers_ahead_of_the_log_are_counted() -> None:
    server = LoadServer()
    server.logged = False
    with server.running():
        counted = loaded(server)
    assert counted.unlogged == len(server.selects) > 0


def test_processes_share_rate_and_connections() -> None:
    with LoadServer().running() as server:
        asked = plan(server.url, rate=200.0, processes=2, connections=5, rewards_per_select=0.5)
        counted = asyncio.run(measure(asked, Silent()))
    assert len(server.selects) == pytest.approx(100, abs=2)
    numbers = [each["context"]["basket"] for each in server.selects]
    assert len(set(numbers)) == len(numbers)
    assert len(counted.cores) == 2
    assert sum(counted.seconds["select"]) == len(server.selects)
    assert sum(counted.seconds["reward"]) == len(server.rewards) > 30
