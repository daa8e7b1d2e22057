"""A service under overload refuses decisions and rewards, and answers everything else."""

from tests.support.service import Wire, expect_problem

COUNTED = 'forage_shed_requests_total{route="/select"}'


def test_an_overloaded_service_says_so_and_when_to_come_again(wire: Wire) -> None:
    wire.services.shedding.share = 0.5
    answers = [wire.post("/select", {"context": {"persona": "cat"}}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 503, 200, 503]
    problem = expect_problem(answers[1], 503)
    assert problem["type"].endswith("/overloaded")
    assert problem["request_id"] == answers[1].headers["x-request-id"]
    assert answers[1].headers["retry-after"] == "1"
    assert wire.metrics()[COUNTED] == 2
    assert (
        wire.metrics()['forage_http_requests_total{method="POST",route="/select",status="503"}']
        == 2
    )


def test_a_refused_request_has_changed_nothing_and_passes_when_it_is_repeated(wire: Wire) -> None:
    decision = wire.select()
    body = {"decision_id": decision["decision_id"], "reward": 1.0}
    wire.services.shedding.share = 0.75
    answers = [wire.post("/reward", body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 503]
    wire.services.shedding.share = 0.0
    assert wire.post("/reward", body).json() == {"status": "duplicate"}


def test_probes_metrics_and_administration_are_served_under_overload(wire: Wire) -> None:
    wire.services.shedding.share = 0.95
    for path in ("/healthz", "/readyz", "/metrics", "/policies"):
        assert wire.get(path).status_code == 200
