"""What is asked of each server, and how rounds become figures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from benchmarks.http import rounds
from benchmarks.http.__main__ import rows
from benchmarks.http.apps import disjoint, echo, validated
from benchmarks.http.apps.wire import ARMS, context_row, served
from benchmarks.http.cases import CASES, ECHO, POLICIES, Case, plan
from service.definition.experiment import load_definition
from service.definition.features import Schema
from service.http.schemas import RewardBody, SelectBody
from simulator_client.load_plan import Requests
from tests.simulator.load_server import LoadServer

EXPERIMENT = Path(rounds.__file__).parent / "experiment.toml"


def requests_of(case: Case) -> Requests:
    with LoadServer().running() as server:
        return Requests(
            plan(case, server.url, seconds=1.0, warmup_s=0.0, rate=None, seed=1), 0
        )  # fmt: skip


def body(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


def test_the_experiment_has_fifty_arms_and_nine_columns() -> None:
    name, definition = load_definition(EXPERIMENT)
    schema = Schema(definition.features)
    assert (name, len(definition.arms)) == ("bench", 50)
    assert tuple(definition.policies) == POLICIES
    row = schema.encode_arm(next(iter(definition.arms.values())))
    assert schema.context.width + len(row) == 9


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_request_is_of_the_wire_and_none_comes_twice(case: Case) -> None:
    requests = requests_of(case)
    asked = [body(requests.select()) for _ in range(600)]
    for each in asked:
        SelectBody.model_validate(each)
        assert each.get("policy") == case.policy
        assert ("arms" in each) == case.arms
    hours = [each["context"]["hour"] for each in asked]
    assert len(set(hours)) == len(hours)
    RewardBody.model_validate(body(requests.reward(b"token")))


def ask(app: FastAPI | Any, path: str, content: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
            return await client.post(path, json=content)

    return asyncio.run(asked())


def test_floors_answer_200_bytes() -> None:
    asked = body(requests_of(CASES["fastapi"]).select())
    assert len(asked["arms"]) == 50
    assert len(ask(echo.app, "/select", asked).content) == 200
    answer = ask(validated.app, "/select", asked)
    assert answer.json() == echo.ANSWER
    assert ask(validated.app, "/select", {"context": 3}).status_code == 422


def test_a_wrapped_learner_is_told_of_its_decision_once() -> None:
    told: list[Any] = []
    app = served(lambda context: (3, 0.5), lambda *what: told.append(what))
    asked = body(requests_of(CASES["vowpal"]).select())
    answer = ask(app, "/select", asked).json()
    assert (answer["arm"], answer["propensity"]) == (ARMS[3], 0.5)
    reward = {"decision_id": answer["decision_id"], "reward": 1.0}
    assert ask(app, "/reward", reward).status_code == 200
    assert ask(app, "/reward", reward).status_code == 404
    ((context, arm, value, probability),) = told
    assert (arm, value, probability) == (3, 1.0, 0.5)
    assert context.tolist() == context_row(asked["context"]).tolist()


def test_the_tutorials_head_by_hand() -> None:
    """Ridge 1, x = [2], reward 1: A 5, b 2, mean 2/5 * 2 and width sqrt(4/5)."""
    arm = disjoint.Arm(1)
    assert arm.bound(np.array([2.0])) == pytest.approx(2.0)
    arm.update(np.array([2.0]), 1.0)
    assert arm.bound(np.array([2.0])) == pytest.approx(0.8 + 0.8**0.5)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """A round in which the machine was half as fast leaves it as it is."""
    names = [ECHO, "mabwiser", "vowpal", "sqlite-linucb", "sqlite-reward"]
    rates = [[40, 20, 40], [1, 1, 2], [2, 1, 1], [10, 5, 11], [8, 4, 8]]
    found: dict[str, Any] = {
        name: {
            "per_second": each,
            "server_us": [100 / rate for rate in each],
            "client_core": [0.5, 0.95, 0.95] if name == ECHO else [0.1],
            "p99_ms": [3.0, 1.0, 2.0],
            "errors": 0,
        }
        for name, each in zip(names, rates, strict=True)
    }
    found["sqlite-reward"]["server_us"] = []
    cases = rounds.judged([CASES[name] for name in names], found)
    assert cases["sqlite-linucb"]["of_echo"] == 0.25
    assert (cases[ECHO]["client_bound"], cases["vowpal"]["client_bound"]) == (True, False)
    assert cases["sqlite-linucb"]["of_echo_by_processor"] == 0.25
    assert cases["sqlite-linucb"]["times_best_peer"] == 5.0
    assert cases["sqlite-linucb"]["median_p99_ms"] == 2.0
    assert cases["sqlite-reward"]["of_echo"] == 0.2
    assert "times_best_peer" not in cases["sqlite-reward"]
    told = rows({"cases": cases})
    assert told[4][:4] == ["sqlite-linucb", "10", "0.250", "5.00"]
