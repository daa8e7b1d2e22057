"""A service under overload refuses decisions and rewards, and answers everything else."""

from collections.abc import Iterator

import pytest

from tests.support.service import Wire, expect_problem

SHED = 'forage_shed_requests_total{route="/select"}'
REFUSED = 'forage_http_requests_total{method="POST",route="/select",status="503"}'


@pytest.fixture
def full(wire: Wire) -> Iterator[Wire]:
    """Overloaded, and as many requests are under way as may be."""
    shedding, gate = wire.services.shedding, wire.services.gate
    shedding.overloaded = True
    gate.waiting += 2 * shedding.bound
    yield wire
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
