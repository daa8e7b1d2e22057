"""A request whose caller has stopped waiting is not begun."""

from typing import Any

import pytest

from service.definition.select_request import SelectRequest
from service.errors import Overdue
from tests.support.service import Wire, expect_problem

CAT: dict[str, Any] = {"persona": "cat"}


def header(timeout_ms: str) -> dict[str, str]:
    return {"X-Envoy-Expected-Rq-Timeout-Ms": timeout_ms}


def test_what_comes_too_late_is_not_begun(wire: Wire) -> None:
    question = {"context": CAT, "policy": "linucb"}
    decision = wire.select(policy="linucb")
    reward = {"decision_id": decision["decision_id"], "reward": 1.0}
    for path, body in (
        ("/select", question),
        ("/select/batch", {"requests": [question]}),
        ("/reward", reward),
        ("/reward/batch", {"requests": [reward]}),
    ):
        problem = expect_problem(wire.post(path, body, headers=header("0")), 504)
        assert problem["type"].endswith("/overdue")
    assert (wire.policy("linucb")["decisions"], wire.policy("linucb")["rewards"]) == (1, 0)
    assert wire.post("/reward", reward, headers=header("60000")).status_code == 200


@pytest.mark.parametrize("timeout_ms", ["60000", "soon", "", "-1", "9" * 30])
def test_what_has_time_or_says_nothing_is_answered(wire: Wire, timeout_ms: str) -> None:
    answer = wire.post("/select", {"context": CAT}, headers=header(timeout_ms))
    assert answer.status_code == 200


@pytest.mark.parametrize("key", [None, "k"])
def test_what_waited_too_long_for_its_batch_is_not_decided(wire: Wire, key: str | None) -> None:
    late = SelectRequest(CAT, policy="linucb", key=key, deadline=0.0)
    with pytest.raises(Overdue):
        wire.run(wire.services.batcher.select(late))
    assert wire.policy("linucb")["decisions"] == 0
