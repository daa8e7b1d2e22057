"""X-Request-ID: in every answer, in its log lines, in the problem of a 5xx."""

import io
import logging
import re

import pytest

from service.http.request_id import SANE
from service.telemetry.logs import formatter
from tests.support.service import Wire, expect_problem

HEX = r"[0-9a-f]{16}"


def test_a_request_keeps_the_id_that_it_brings(wire: Wire) -> None:
    for name in ("order-7", "a", "x" * 128, "Root=1-67891233-abcdef012345678912345678"):
        assert wire.get("/healthz", headers={"X-Request-ID": name}).headers["x-request-id"] == name
    for path in ("/select", "/reward"):
        for body in ({"context": {"persona": "cat"}}, {"nonsense": 1}, []):
            answer = wire.post(path, body, headers={"X-Request-ID": "mine"})
            assert answer.headers["x-request-id"] == "mine"


def test_a_request_without_one_is_given_one_of_its_own(wire: Wire) -> None:
    ids = [wire.get("/healthz").headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch(HEX, name) for name in ids)
    assert ids[0] != ids[1]
    assert SANE.fullmatch(ids[0])


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a\tb", "<b>", '"', "ä".encode("latin-1"), "-x"]
)
def test_an_id_that_is_not_sane_is_replaced(name: str | bytes, wire: Wire) -> None:
    answer = wire.request("GET", "/healthz", headers=[(b"X-Request-ID", name)])
    assert answer.status_code == 200
    assert re.fullmatch(HEX, answer.headers["x-request-id"])


def test_refusals_and_unknown_paths_have_the_id_in_the_header_alone(wire: Wire) -> None:
    for path, status in (("/nowhere", 404), ("/arms/none", 404)):
        answer = wire.get(path, headers={"X-Request-ID": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
        assert "request_id" not in answer.json()


def test_a_bug_is_found_in_the_log_by_the_id_of_its_answer_which_tells_nothing_else(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail(*arguments: object) -> None:
        raise ZeroDivisionError("SECRETVALUE")

    monkeypatch.setattr(type(wire.services.selector), "select", fail)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter("json", handler.stream))
    logging.getLogger().addHandler(handler)
    client = wire.connect(raise_app_exceptions=False)
    client.event_hooks = {}  # the document declares no 500
    try:
        for headers in ({}, {"X-Request-ID": "mine"}):
            body = {"context": {"persona": "cat"}}
            answer = wire.run(client.post("/select", json=body, headers=headers))
            problem = expect_problem(answer, 500)
            assert problem["type"].endswith("/internal")
            assert "SECRETVALUE" not in answer.text
            name = answer.headers["x-request-id"]
            assert problem["request_id"] == name == headers.get("X-Request-ID", name)
            lines = capfd.readouterr().err.splitlines()
            assert any("a request failed" in line and f'"{name}"' in line for line in lines)
            assert "SECRETVALUE" in "".join(lines)
    finally:
        logging.getLogger().removeHandler(handler)
        wire.run(client.aclose())
    counted = 'forage_http_requests_total{method="POST",route="/select",status="500"}'
    assert wire.metrics()[counted] == 2


def test_every_line_of_a_request_names_it_and_those_outside_none(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    written = []
    handler = logging.Handler()
    handler.setFormatter(formatter("json", io.StringIO()))
    handler.emit = lambda record: written.append(handler.format(record))  # type: ignore[method-assign]
    with caplog.at_level(logging.DEBUG, "service"):
        logging.getLogger("service").addHandler(handler)
        try:
            wire.get("/units/SECRETUNIT", headers={"X-Request-ID": "mine"})
            logging.getLogger("service").warning("outside")
        finally:
            logging.getLogger("service").removeHandler(handler)
    inside = [line for line in written if "answered" in line]
    assert inside
    assert all('"request_id": "mine"' in line for line in inside)
    assert "SECRETUNIT" not in "".join(written)
    assert "request_id" not in next(line for line in written if "outside" in line)
