"""A call goes on through what passes, says what does not, and counts both."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import numpy as np
import pytest
from forage_client import Problem, Unreachable

from simulator_client.client import Answer, Client, bodies_of
from simulator_client.errors import UsageError

from .fake import FakeService, Fault, busy, lost, problem, refused, transport

DEFINITION = {"arms": {"0": {"category": "Dog Food"}}, "policies": {"linucb": {"kind": "linucb"}}}
SELECT = {"experiment": "e", "policy": "linucb", "context": {"persona": "p"}}


class Naps:
    """Sleeps that take no time and are kept."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)


def client_of(
    answers: httpx.MockTransport, naps: Naps, urls: Iterable[str] = ("http://a",), **more: Any
) -> Client:
    rng = np.random.default_rng(0)
    return Client(list(urls), transport=answers, sleep=naps, rng=rng, **more)


def select(service: FakeService, faults: Iterable[Fault], naps: Naps) -> Answer:
    service.experiments["e"] = DEFINITION
    return asyncio.run(client_of(transport(service, faults), naps).select(SELECT))


def test_retries_pass_over_what_passes_and_are_counted() -> None:
    service, naps = FakeService(), Naps()
    answer = select(service, [refused, busy, lost], naps)
    assert (answer.retries, answer.lost) == (3, 1)
    assert answer.body["arm"] == "0"
    assert len(service.decisions) == 2, "the lost answer left an orphan"


def test_backoff_grows_with_jitter_and_honours_retry_after() -> None:
    naps = Naps()
    select(FakeService(), [refused] * 8, naps)
    ceilings = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for nap_s, ceiling_s in zip(naps.taken_s, ceilings, strict=True):
        assert ceiling_s / 2 <= nap_s <= ceiling_s
    naps = Naps()
    select(FakeService(), [busy], naps)
    assert naps.taken_s == [0.2], "Retry-After is longer than the first backoff"


def test_a_retried_reward_counts_once() -> None:
    service, naps = FakeService(), Naps()
    token = select(service, (), naps).body["decision_id"]
    client = client_of(transport(service, [lost]), naps)
    answer = asyncio.run(client.reward({"decision_id": token, "reward": 1.0}))
    assert (answer.body["status"], answer.retries) == ("duplicate", 1)
    assert service.rewards == {token: 1.0}


@pytest.mark.parametrize(
    "fault",
    [refused, busy, lambda request, answer: problem(503, "Busy", retry_after="3600")],
)
def test_the_time_bound_ends_a_call(fault: Fault) -> None:
    service, naps = FakeService(), Naps()
    client = client_of(transport(service, [fault] * 99), naps, bound_s=0.1)
    with pytest.raises(Unreachable, match=r"POST /select at http://a: .* within 0 s"):
        asyncio.run(client.select(SELECT))


def answering(respond: Callable[[httpx.Request], httpx.Response]) -> Client:
    return client_of(httpx.MockTransport(respond), Naps())


def test_a_problem_is_raised_with_its_parts_and_not_retried() -> None:
    calls = []

    def respond(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path)
        faults = [{"path": "context.persona", "message": "unknown value"}]
        body = {"title": "Invalid", "status": 422, "detail": "1 fault", "errors": faults}
        return httpx.Response(422, json=body)

    with pytest.raises(Problem) as raised:
        asyncio.run(answering(respond).select(SELECT))
    assert (raised.value.status, raised.value.title, raised.value.detail) == (
        422, "Invalid", "1 fault",
    )  # fmt: skip
    assert raised.value.errors == [{"path": "context.persona", "message": "unknown value"}]
    assert str(raised.value) == "422 Invalid: 1 fault: context.persona: unknown value"
    assert calls == ["/select"]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'"x"'])
def test_an_answer_that_is_no_json_object_is_not_forage(content: bytes) -> None:
    client = answering(lambda request: httpx.Response(200, content=content))
    with pytest.raises(Unreachable, match="not Forage"):
        asyncio.run(client.select(SELECT))
    client = answering(lambda request: httpx.Response(500, content=content))
    with pytest.raises(Problem, match="500 Internal Server Error"):
        asyncio.run(client.select(SELECT))


def test_replicas_are_asked_in_turn_and_a_dead_one_is_passed_over() -> None:
    service = FakeService()
    service.experiments["e"] = DEFINITION

    async def two_visits(client: Client) -> None:
        for _ in range(2):
            token = (await client.select(SELECT)).body["decision_id"]
            await client.reward({"decision_id": token, "reward": 0.0})

    urls = ["http://a", "http://b/"]
    asyncio.run(two_visits(client_of(transport(service), Naps(), urls)))
    assert service.served == [
        ("http://a", "/select"), ("http://b", "/reward"),
        ("http://b", "/select"), ("http://a", "/reward"),
    ]  # fmt: skip
    service.served.clear()
    asyncio.run(client_of(transport(service, [refused]), Naps(), urls).select(SELECT))
    assert service.served == [("http://b", "/select")]


def test_wait_ready() -> None:
    ready = iter([problem(503, "Not ready", "folding the log"), httpx.Response(200, json={})])
    asyncio.run(answering(lambda request: next(ready)).wait_ready(5.0))
    down = answering(lambda request: problem(503, "Not ready", "folding the log"))
    with pytest.raises(
        Unreachable, match=r"no ready Forage service at http://a: .*folding the log"
    ):
        asyncio.run(down.wait_ready(0.0))
    with pytest.raises(Unreachable, match="not Forage"):
        asyncio.run(answering(lambda request: httpx.Response(404)).wait_ready(0.0))


def test_arms_too_many_for_one_body_follow_in_chunks() -> None:
    """3,000 arms of 1,000 bytes: no body is longer than 900,000 bytes, and none is missing."""
    arms = {str(k): {"item": "x" * 1_000} for k in range(3_000)}
    first, *more = bodies_of(DEFINITION | {"arms": arms})
    assert first == DEFINITION | {"arms": {}}
    assert len(more) == 4
    assert all(len(json.dumps(body)) <= 900_000 for body in more)
    assert {arm: told for body in more for arm, told in body["arms"].items()} == arms
    assert bodies_of(DEFINITION) == [DEFINITION]
    service = FakeService()
    client = client_of(transport(service), Naps())
    asyncio.run(client.put_experiment("e", DEFINITION | {"arms": arms}))
    assert service.experiments["e"]["arms"] == arms
    asyncio.run(client.wait_defined("e", 0.0, arms=3_000))
    with pytest.raises(Unreachable, match="'e' is not yet known"):
        asyncio.run(client.wait_defined("e", 0.0, arms=3_001))


def test_an_experiment_is_deleted_once_and_again() -> None:
    service = FakeService()
    client = client_of(transport(service), Naps())
    asyncio.run(client.put_experiment("e", DEFINITION))
    for _ in range(2):
        asyncio.run(client.delete_experiment("e"))
    assert service.deleted == ["e"]
    assert asyncio.run(client.get_experiment("no/such thing?")) is None


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a", "http://", "http://a:x"])
def test_a_bad_url_is_said(url: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        Client([url])
    with pytest.raises(UsageError):
        Client([])
