"""POST /experiments/{name}/evaluations: what a console asks, answered from another process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.evaluation import running
from service.evaluation.request import EvaluationRequest
from tests.support.service import Wire, paths, serving

pytestmark = pytest.mark.process

PATH = "/experiments/shop/evaluations"
DECISIONS = 90


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A service on SQLite, since another process is to read the log; cats like toys."""
    path = tmp_path_factory.mktemp("log") / "forage.db"
    with serving(store=f"sqlite:///{path}") as wire:
        for number in range(DECISIONS):
            decision = wire.select(unit=f"unit-{number}")
            wire.reward(decision, float(decision["arm"] != "kibble"))
        yield wire


def test_live_policies_are_estimated_with_intervals(wire: Wire) -> None:
    answer = wire.post(PATH, {"decisions": 1_000})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["experiment"], found["decisions"]) == ("shop", DECISIONS)
    assert sum(found["logged_by"].values()) == DECISIONS
    by_name = {each["policy"]: each for each in found["policies"]}
    assert set(by_name) == {"linucb", "lints", "named_only"}
    lints = by_name["lints"]
    assert lints["refused"] is None
    assert set(lints["estimates"]) == {"ips", "snips", "dr", "switch_dr"}
    assert 0 <= lints["direct_method"] <= 1
    assert (found["metric"], found["slates"]) == ("reward_per_decision", 0)
    for each in lints["estimates"].values():
        low, high = each["interval"]
        assert 0 <= low <= high <= 1
        assert low <= min(max(each["value"], 0.0), 1.0) <= high  # weights may overrate what is seen


def test_a_definition_that_never_ran_is_estimated(wire: Wire) -> None:
    """And the value of the first slot is told by that name."""
    body = {"definition": {"idea": {"kind": "lints", "draws": 64, "epsilon": 0.1}}}
    found = wire.post(PATH, {**body, "slates": "first_slot"}).json()
    assert found["metric"] == "reward_of_first_slot"
    [idea] = found["policies"]
    assert (idea["policy"], idea["never_ran"], idea["refused"]) == ("idea", True, None)


def test_what_cannot_be_told_is_refused_in_words(wire: Wire) -> None:
    [found] = wire.post(PATH, {"policies": ["lints"], "decisions": 20}).json()["policies"]
    assert "at least 50 are needed" in found["refused"]
    assert (found["estimates"], found["direct_method"]) == ({}, None)
    assert wire.post("/experiments/mall/evaluations", {}).status_code == 404
    with serving() as in_memory:  # no other process can read it
        answer = in_memory.post(PATH, {})
    assert answer.status_code == 422
    assert "memory://" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"policies": ["nobody"]}, 404, "policies"),
        ({"definition": {"lints": {"kind": "random"}}}, 422, "definition"),
        ({"definition": {"idea": {"kind": "lints", "features": ["colour"]}}}, 422, "definition"),
        ({"definition": {"idea": {"kind": "oracle"}}}, 422, "definition.idea.kind"),
        ({"decisions": 0}, 422, "decisions"),
        ({"policies": []}, 422, "policies"),
        ({"confidence": 1}, 422, "confidence"),
        ({"since": "yesterday"}, 422, "since"),
        ({"slates": "first"}, 422, "slates"),
        ({"surprise": 1}, 422, "surprise"),
    ],
)
def test_what_is_wrong_is_refused_and_told_where(
    wire: Wire, body: dict[str, object], status: int, path: str
) -> None:
    answer = wire.post(PATH, body)
    assert answer.status_code == status, answer.text
    assert paths(answer.json()) == [path]


def test_one_runs_at_a_time_and_few_wait(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.services.evaluations, "_most", 1)

    async def three() -> list[httpx.Response]:
        asked = [wire.client.post(PATH, json={"policies": ["lints"]}) for _ in range(3)]
        return await asyncio.gather(*asked)

    answers = wire.run(three())
    assert sorted(answer.status_code for answer in answers) == [200, 200, 409]
    assert "1 wait already" in next(a for a in answers if a.status_code == 409).text


def test_one_that_takes_too_long_is_ended_and_another_can_be_asked(wire: Wire) -> None:
    evaluations = wire.services.evaluations
    seconds, evaluations._seconds = evaluations._seconds, 0.05
    try:
        answer = wire.post(PATH, {})
    finally:
        evaluations._seconds = seconds
    assert answer.status_code == 422
    assert "longer than 0.05 seconds" in answer.json()["detail"]
    assert wire.post(PATH, {"policies": ["lints"], "decisions": 20}).status_code == 200


def test_a_caller_who_goes_away_ends_it(wire: Wire) -> None:
    async def leave() -> None:
        task = asyncio.create_task(wire.services.evaluations.run(EvaluationRequest("shop")))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    wire.run(leave())
    assert not wire.services.evaluations.busy


def test_the_store_s_address_is_in_no_list_of_processes() -> None:
    """It may hold a password: the worker reads it from standard input."""
    source = Path(running.__file__).read_text(encoding="utf-8")
    [command] = [part.partition(")")[0] for part in source.split("create_subprocess_exec(")[1:]]
    assert "store" not in command
