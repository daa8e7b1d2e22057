"""A bug is answered as a problem too, logged, and counted; nothing of it is told."""

import logging

import httpx
import pytest

from service.definition.select_request import SelectRequest
from service.serving.batcher import SelectBatcher
from service.serving.engine import Answer
from tests.support.service import Wire, expect_problem


def test_a_bug_is_a_problem_that_tells_nothing_of_itself(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: SelectBatcher, question: SelectRequest) -> Answer:
        raise RuntimeError("SECRETVALUE")

    monkeypatch.setattr(SelectBatcher, "select", broken)
    transport = httpx.ASGITransport(wire.app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://forage")
    with caplog.at_level(logging.ERROR):
        answer = wire.run(client.post("/select", json={"context": {}}))
    problem = expect_problem(answer, 500)
    assert problem["type"].endswith("/internal")
    assert "SECRETVALUE" not in answer.text
    assert "SECRETVALUE" in caplog.text
    counted = 'forage_http_requests_total{method="POST",route="/select",status="500"}'
    assert wire.metrics()[counted] == 1
