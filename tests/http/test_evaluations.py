"""Evaluations over HTTP with their real processes: what they find, and how they end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.analysis import running
from service.analysis.estimators import ESTIMATORS
from tests.support.evaluated import estimates, evaluated, stop, workers
from tests.support.service import Wire, expect_problem, serving

pytestmark = pytest.mark.process

PATH = "/experiments/shop/evaluations"
DECISIONS = 200


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
    found = estimates(wire, {"decisions": 1_000})
    assert (found["experiment"], found["decisions"]) == ("shop", DECISIONS)
    assert sum(found["logged_by"].values()) == DECISIONS
    by_name = {each["policy"]: each for each in found["policies"]}
    assert set(by_name) == {"linucb", "lints", "named_only"}
    lints = by_name["lints"]
    assert lints["refused"] is None
    assert list(lints["estimates"]) == list(ESTIMATORS)
    assert 0 <= lints["direct_method"] <= 1
    assert (found["metric"], found["slates"]) == ("reward_per_decision", 0)
    for each in lints["estimates"].values():
        low, high = each["interval"]
        assert 0 <= low <= high <= 1
        assert low <= min(max(each["value"], 0.0), 1.0) <= high  # weights may overrate what is seen


def test_a_definition_that_never_ran_is_estimated(wire: Wire) -> None:
    """And the value of the first slot is told by that name."""
    body = {"definition": {"idea": {"kind": "lints", "draws": 64, "epsilon": 0.1}}}
    found = estimates(wire, {**body, "slates": "first_slot"})
    assert found["metric"] == "reward_of_first_slot"
    [idea] = found["policies"]
    assert (idea["policy"], idea["never_ran"], idea["refused"]) == ("idea", True, None)


def test_policies_are_estimated_under_other_rules(wire: Wire) -> None:
    """`kibble` earns nothing: a pin of it costs; to take away a rule that is not there does not."""
    pin = {"pin": {"arm": "kibble", "share": 0.3}}
    values = []
    for rules in ({}, {"pinned": pin}, {"pinned": None}):
        [found] = estimates(wire, {"policies": ["lints"], "rules": rules})["policies"]
        assert found["refused"] is None
        values.append(found["estimates"]["dr"]["value"])
    assert values[1] < values[0] - 0.1
    assert values[2] == values[0]
    refused = wire.post(PATH, {"rules": {"pinned": {"pin": {"arm": "kibbel", "share": 0.9}}}})
    [fault] = expect_problem(refused, 422)["errors"]
    assert (fault["path"], "did you mean 'kibble'?" in fault["message"]) == ("rules", True)


def test_what_cannot_be_told_is_refused_in_words(wire: Wire) -> None:
    [found] = estimates(wire, {"policies": ["lints"], "decisions": 20})["policies"]
    assert "at least 50 are needed" in found["refused"]
    assert (found["estimates"], found["direct_method"]) == ({}, None)


def test_a_process_reports_its_progress(wire: Wire) -> None:
    job = evaluated(wire, {})
    counted, done, of = job["progress"].values()
    assert counted in ("events read", "decisions read", "events replayed", "decisions evaluated")
    assert 0 < done <= of
    assert job["seconds"] > 0


def stopped(wire: Wire) -> tuple[str, int]:
    """Start an evaluation whose process goes on only when the test says so: its path and process.
    It can still be killed."""
    path = wire.post(PATH, {}).headers["location"]
    wire.until(lambda: bool(workers(os.getpid())))
    process = stop(os.getpid())
    assert wire.get(path).json()["state"] == "running"
    return path, process


def test_a_cancelled_evaluation_leaves_no_process(wire: Wire) -> None:
    path, process = stopped(wire)
    assert wire.delete(path).status_code == 204
    assert not Path(f"/proc/{process}").exists()
    assert wire.get(path).json()["state"] == "cancelled"
    assert evaluated(wire, {"policies": ["lints"]})["state"] == "done"


def test_a_process_that_is_killed_is_a_failed_evaluation(wire: Wire) -> None:
    path, process = stopped(wire)
    os.kill(process, signal.SIGKILL)
    wire.until(lambda: wire.get(path).json()["state"] != "running")
    job = wire.get(path).json()
    assert job["state"] == "failed"
    assert "was ended by SIGKILL" in job["problem"]["detail"]
    assert evaluated(wire, {"policies": ["lints"]})["state"] == "done"


def test_a_process_that_crashes_is_a_failed_evaluation(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    job = evaluated(wire, {})
    assert job["state"] == "failed"
    assert "was ended with status 1" in job["problem"]["detail"]
    assert "the log of the service has its errors" in job["problem"]["detail"]
    assert "the process of an evaluation was ended with status 1" in caplog.text


def test_the_end_of_the_service_ends_the_process(tmp_path: Path) -> None:
    with serving(store=f"sqlite:///{tmp_path}/forage.db") as service:
        _, process = stopped(service)
    assert not Path(f"/proc/{process}").exists()


def test_one_that_takes_too_long_is_ended_and_another_can_be_asked(wire: Wire) -> None:
    worker = wire.services.evaluations._worker
    seconds, worker._seconds = worker._seconds, 0.05
    try:
        job = evaluated(wire, {})
    finally:
        worker._seconds = seconds
    assert job["state"] == "failed"
    assert "longer than 0.05 seconds" in job["problem"]["detail"]
    assert workers(os.getpid()) == []
    assert evaluated(wire, {"policies": ["lints"], "decisions": 20})["state"] == "done"


def test_the_store_s_address_is_in_no_list_of_processes() -> None:
    """It may hold a password: the worker reads it from standard input."""
    source = Path(running.__file__).read_text(encoding="utf-8")
    [command] = [part.partition(")")[0] for part in source.split("create_subprocess_exec(")[1:]]
    assert "store" not in command
