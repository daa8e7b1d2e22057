"""A service under overload refuses decisions and rewards, and answers everything else."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.plug import Connection, Plug, head
from tests.support.service import Wire, expect_problem, serving

SHED = 'forage_shed_requests_total{route="/select"}'
REFUSED = 'forage_http_requests_total{method="POST",route="/select",status="503"}'


@pytest.fixture
def full(wire: Wire) -> Iterator[Wire]:
    with filled(wire):
        yield wire


@contextmanager
def filled(wire: Wire) -> Iterator[None]:
    """Overloaded, and as many requests are under way as may be."""
    shedding, gate = wire.services.shedding, wire.services.gate
    shedding.overloaded = True
    gate.waiting += 2 * shedding.bound
    yield
    shedding.overloaded = False
    gate.waiting -= 2 * shedding.bound


def test_an_overloaded_service_says_so_and_when_to_come_again(full: Wire) -> None:
    answer = full.post("/select", {"context": {"persona": "cat"}})
    problem = expect_problem(answer, 503)
    assert problem["type"].endswith("/overloaded")
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["retry-after"] == "1"
    assert (full.metrics()[SHED], full.metrics()[REFUSED]) == (1, 1)


def test_a_refused_request_keeps_the_id_that_it_brings(full: Wire) -> None:
    answer = full.post("/select", {}, headers={"X-Request-ID": "mine"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"


def test_a_refused_reward_has_changed_nothing_and_passes_later(full: Wire) -> None:
    full.services.shedding.overloaded = False
    decision = full.select()
    body = {"decision_id": decision["decision_id"], "reward": 1.0}
    full.services.shedding.overloaded = True
    expect_problem(full.post("/reward", body), 503)
    full.services.shedding.overloaded = False
    assert full.post("/reward", body).json() == {"status": "accepted"}


def test_probes_metrics_and_administration_are_served_under_overload(full: Wire) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/policies"):
        assert full.get(path).status_code == 200


# -- before the application hears of a request -----------------------------------------------------


SELECT = b'{"context": {"persona": "cat"}}'


def asked(wire: Wire, **headers: str) -> Connection:
    """A connection whose select was sent."""
    connection = Plug(wire)
    connection.send(head("/select", len(SELECT), {"Content-Type": "application/json", **headers}))
    connection.send(SELECT)
    return connection


def test_a_connection_is_told_the_same_and_may_go_on(full: Wire) -> None:
    """The refused body is not taken for the next request."""
    connection = asked(full, **{"X-Request-ID": "mine"})
    answer = connection.receive()
    problem = expect_problem(answer, 503)
    assert problem["type"].endswith("/overloaded")
    assert answer.headers["x-request-id"] == problem["request_id"] == "mine"
    assert answer.headers["retry-after"] == "1"
    assert (full.metrics()[SHED], full.metrics()[REFUSED]) == (1, 1)
    full.services.shedding.overloaded = False
    connection.send(head("/select", len(SELECT), {"Content-Type": "application/json"}) + SELECT)
    assert connection.receive().status_code == 200
    assert connection.protocol.bounds.pending == 0


def test_a_refused_request_whose_body_is_malformed_is_told_that(full: Wire) -> None:
    """Its chunk has no size. No route has begun that could be told."""
    sized = head("/select", len(SELECT), {"Content-Type": "application/json"})
    connection = Plug(full)
    connection.send(
        sized.replace(b"Content-Length: %d" % len(SELECT), b"Transfer-Encoding: chunked")
    )
    connection.send(b"no size\r\n")
    assert expect_problem(connection.receive(), 400)["type"].endswith("/malformed-http")


def test_a_connection_that_was_to_close_is_closed(full: Wire) -> None:
    connection = asked(full, Connection="close")
    assert connection.receive().headers["connection"] == "close"
    assert connection.transport.closed


def test_a_page_of_another_origin_may_read_that_it_was_refused() -> None:
    with serving(cors_origins="https://shop.example") as wire, filled(wire):
        answer = asked(wire, Origin="https://shop.example").receive()
        assert expect_problem(answer, 503)["type"].endswith("/overloaded")
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
