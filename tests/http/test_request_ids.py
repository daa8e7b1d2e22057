"""X-Request-ID: in every answer of the ordinary way, in its log lines, in the problem of a 5xx."""

import io
import logging
import re

import pytest

from service.http.request_id import SANE
from service.observability.logs import formatter
from tests.support.service import Wire, serving

HEX = r"[0-9a-f]{16}"


def test_a_request_keeps_the_id_that_it_brings(wire: Wire) -> None:
    for name in ("order-7", "a", "x" * 128, "Root=1-67891233-abcdef012345678912345678"):
        assert wire.get("/healthz", headers={"X-Request-ID": name}).headers["x-request-id"] == name


def test_a_request_without_one_is_given_one_of_its_own(wire: Wire) -> None:
    ids = [wire.get("/healthz").headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch(HEX, name) for name in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a\tb", "<b>", '"', "ä".encode("latin-1"), "-x"]
)
def test_an_id_that_is_not_sane_is_replaced(name: str | bytes, wire: Wire) -> None:
    answer = wire.request("GET", "/healthz", headers=[(b"X-Request-ID", name)])
    assert answer.status_code == 200
    assert re.fullmatch(HEX, answer.headers["x-request-id"])


@pytest.mark.parametrize("path", ["/select", "/reward"])
def test_the_hot_routes_answer_with_the_id_as_well(path: str, wire: Wire) -> None:
    for body in ({"context": {"persona": "cat"}}, {"nonsense": 1}, []):
        answer = wire.post(path, body, headers={"X-Request-ID": "mine"})
        assert answer.headers["x-request-id"] == "mine"


def test_refusals_and_unknown_paths_have_the_id_in_the_header_alone(wire: Wire) -> None:
    for path, status in (("/nowhere", 404), ("/arms/none", 404)):
        answer = wire.get(path, headers={"X-Request-ID": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
        assert "request_id" not in answer.json()


def broken(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(type(wire.services.batcher), "select", fail)


def test_a_bug_is_found_in_the_log_by_the_id_of_its_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving() as wire:
        broken(wire, monkeypatch)
        handler = logging.StreamHandler()
        handler.setFormatter(formatter("json", handler.stream))
        logging.getLogger().addHandler(handler)
        client = wire.connect(raise_app_exceptions=False)
        client.event_hooks = {}  # the document declares no 500
        try:
            for headers in ({}, {"X-Request-ID": "mine"}):
                body = {"context": {"persona": "cat"}}
                answer = wire.run(client.post("/select", json=body, headers=headers))
                name = answer.headers["x-request-id"]
                assert answer.status_code == 500
                assert answer.json()["request_id"] == name
                assert name == headers.get("X-Request-ID", name)
                lines = capfd.readouterr().err.splitlines()
                assert any("a request failed" in line and f'"{name}"' in line for line in lines)
        finally:
            logging.getLogger().removeHandler(handler)
            wire.run(client.aclose())


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


def test_ids_of_ours_are_sane() -> None:
    assert SANE.fullmatch("0123456789abcdef")
