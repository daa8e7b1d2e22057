"""A load test against a server with planned faults: its counts, and its latencies."""

import socket
import threading
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from simulator_client.load import Plan, Tally, run
from simulator_client.load_requests import Requests, origin_of

from .load_server import CLOSE, DEFINITION, LoadServer, refusal, stalling

pytestmark = pytest.mark.process

STALL_S = 0.6


def loaded(server: LoadServer, **asked: Any) -> Tally:
    requests = Requests(server.url, DEFINITION, {})
    standard: dict[str, Any] = {
        "connections": 4, "warmup_s": 0.0, "seconds": 0.5, "rewards_per_select": 0.0,
        "timeout_s": 5.0,
    }  # fmt: skip
    standard["origins"] = [origin_of(server.url)]
    return run(Plan(requests=requests, **(standard | asked)))


def count(latencies: HdrHistogram, at_least_s: float = 0.0) -> int:
    """Count the latencies, or those of at least so many seconds."""
    return sum(
        step.count_added_in_this_iter_step
        for step in latencies.get_recorded_iterator()
        if step.value_iterated_to >= at_least_s * 1e6
    )


def test_a_stall_is_in_the_latency_of_every_select_due_meanwhile() -> None:
    """About 280 fall due in 1.4 s, and the server stalls for 0.6 s of them. Those due in the first
    half of the stall waited for 0.3 s or more: about 60."""
    with LoadServer(stalling(100, STALL_S)).running() as server:
        counted = loaded(server, rate=200.0, seconds=1.4, connections=8)
    assert count(counted.latencies["select"]) == len(server.selects) == counted.total("select")
    assert len(server.selects) == pytest.approx(280, abs=70)
    assert count(counted.latencies["select"], STALL_S / 2) >= 35


@pytest.mark.parametrize(("answer", "reason"), [(refusal(503), "503"), (CLOSE, "closed")])
def test_a_failed_request_is_an_error_without_a_latency(answer: bytes, reason: str) -> None:
    with LoadServer(lambda path, number: None if number % 10 else answer).running() as server:
        counted = loaded(server)
    failed = len(server.selects) // 10
    assert counted.errors == {("select", reason): failed}
    assert count(counted.latencies["select"]) == len(server.selects) - failed
    assert counted.total("error") == failed
    lost = failed if answer == CLOSE else 0
    assert server.connections <= 4 + lost, "connections are used again"


def test_a_seed_gives_the_same_arrivals() -> None:
    """100 are due in half a second; 40 less or more would be four standard deviations."""
    sent = []
    for seed in (1, 1, 2):
        with LoadServer().running() as server:
            loaded(server, rate=200.0, connections=64, seed=seed)
        sent.append(len(server.selects))
    assert sent[0] == sent[1] != sent[2]
    assert sent[0] == pytest.approx(100, abs=40)


@pytest.mark.parametrize("rate", [None, 400.0])
def test_each_token_is_rewarded_at_most_once(rate: float | None) -> None:
    with LoadServer().running() as server:
        loaded(server, rewards_per_select=0.2, rate=rate, connections=8)
    told = [each["decision_id"] for each in server.rewards]
    assert len(set(told)) == len(told)
    assert len(told) == pytest.approx(0.2 * len(server.selects), abs=9)
    assert {each["reward"] for each in server.rewards} == {0.0, 1.0}


def test_rewards_alone_reward_the_decisions_of_the_warm_up() -> None:
    with LoadServer().running() as server:
        counted = loaded(
            server, rewards_alone=True, warmup_s=0.3, seconds=5.0, rewards_per_select=0.2
        )
    assert len(server.rewards) == len(server.selects) > 10
    assert count(counted.latencies["select"]) == 0
    assert count(counted.latencies["reward"]) == pytest.approx(len(server.rewards), abs=4)
    assert counted.counted_s < 5.0


def test_without_a_listener_requests_are_refused() -> None:
    """Each of four connections tries ten times a second, for half a second."""
    with LoadServer().running() as server:
        pass
    counted = loaded(server)
    assert set(counted.errors) == {("select", "refused")}
    assert 4 <= counted.errors["select", "refused"] <= 24


def test_a_timeout_is_an_error_with_a_latency() -> None:
    over = threading.Event()

    def hold(path: str, number: int) -> None:
        over.wait()

    with LoadServer(hold).running() as server:
        counted = loaded(server, rate=40.0, timeout_s=0.3)
        over.set()
    assert set(counted.errors) == {("select", "timeout")}
    assert counted.errors["select", "timeout"] == count(counted.latencies["select"])
    assert count(counted.latencies["select"], 0.299) == count(counted.latencies["select"])


def test_a_full_backlog_is_an_error_with_a_latency() -> None:
    """Linux drops connections beyond the backlog of a listener that accepts none."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        server = LoadServer()
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        counted = loaded(server, rate=40.0, connections=64, timeout_s=0.3)
    assert set(counted.errors) == {("select", "timeout"), ("select", "unreached")}
    assert count(counted.latencies["select"], 0.299) == counted.errors.total()


def test_the_warm_up_does_not_count() -> None:
    with LoadServer(stalling(1, 0.3)).running() as server:
        counted = loaded(server, rate=50.0, warmup_s=1.0, seconds=1.0)
    assert 0 < count(counted.latencies["select"]) < len(server.selects) == counted.total("select")
    assert counted.latencies["select"].get_max_value() < 0.3e6, "the stall was in the warm-up"
    assert counted.answered["select"] == counted.seconds["select"][1]


def test_contexts_never_repeat_and_origins_share_the_connections() -> None:
    with LoadServer().running() as one, LoadServer().running() as other:
        loaded(one, origins=[origin_of(one.url), origin_of(other.url)])
    numbers = [each["context"]["basket"] for each in one.selects + other.selects]
    assert len(set(numbers)) == len(numbers)
    assert one.connections == other.connections == 2
