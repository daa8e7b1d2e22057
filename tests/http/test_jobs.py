"""Evaluations over HTTP as jobs: started, watched, cancelled and kept. Their processes are the
test's; test_evaluations.py has real ones."""

import asyncio
from typing import Any

import msgspec
import pytest

from service.analysis.jobs import KEPT_JOBS, KEPT_JOBS_IN_ALL, KEPT_SECONDS
from service.analysis.running import (
    AnswerLine,
    EvaluationWorker,
    ProgressLine,
    RefusalLine,
    Result,
    Run,
)
from service.definition.experiment import load_definition
from service.errors import ProcessEnded, StoreUnavailable
from tests.support.clock import VirtualClock
from tests.support.evaluated import NOTHING_TOLD
from tests.support.keys import Keys
from tests.support.service import SHOP, Json, Wire, expect_problem, paths, serving

PATH = "/experiments/shop/evaluations"
DONE = AnswerLine(msgspec.Raw(msgspec.json.encode(NOTHING_TOLD)))


class Held(EvaluationWorker):
    """Its processes end when the test says so."""

    def __init__(self, clock: VirtualClock, waiting: int = 4) -> None:
        super().__init__("sqlite:///elsewhere", 120.0, waiting, clock)
        self.processes: list[tuple[Run, asyncio.Future[Result]]] = []

    async def _work(self, run: Run, question: bytes) -> Result:
        end = asyncio.get_running_loop().create_future()
        self.processes.append((run, end))
        return await end

    def finish(self, with_: Result | Exception = DONE) -> None:
        """End the process that runs."""
        end = self.processes[-1][1]
        if isinstance(with_, Exception):
            end.set_exception(with_)
        else:
            end.set_result(with_)


@pytest.fixture
def worker(wire: Wire, clock: VirtualClock) -> Held:
    return holding(wire, clock)


def holding(wire: Wire, clock: VirtualClock) -> Held:
    worker = Held(clock)
    wire.services.evaluations._worker = worker
    return worker


def start(wire: Wire, experiment: str = "shop", **options: Any) -> str:
    """Start a job, and return its path."""
    answer = wire.post(f"/experiments/{experiment}/evaluations", {}, **options)
    assert answer.status_code == 202, answer.text
    wire.sleep(0.0)
    path: str = answer.headers["location"]
    assert path == f"/experiments/{experiment}/evaluations/{answer.json()['id']}"
    return path


def job(wire: Wire, path: str) -> Json:
    found: Json = wire.get(path).json()
    return found


def ended(wire: Wire, worker: Held, experiment: str = "shop") -> str:
    path = start(wire, experiment)
    worker.finish()
    wire.sleep(0.0)
    assert job(wire, path)["state"] == "done"
    return path


def test_a_job_waits_runs_and_has_a_result(wire: Wire, worker: Held, clock: VirtualClock) -> None:
    first, second = start(wire), start(wire)
    for path, state in ((first, "running"), (second, "waiting")):
        found = job(wire, path)
        assert found["state"] == state
        assert (found["progress"], found["result"], found["problem"]) == (None, None, None)
    assert job(wire, second)["seconds"] is None
    worker.processes[0][0].step = ProgressLine("decisions read", 200, 1_000)
    wire.sleep(30.0)
    running = job(wire, first)
    assert running["progress"] == {"doing": "decisions read", "done": 200, "of": 1_000}
    assert running["seconds"] == pytest.approx(30.0, abs=0.1)
    worker.finish()
    wire.sleep(5.0)
    done = job(wire, first)
    assert (done["state"], done["result"], done["problem"]) == ("done", NOTHING_TOLD, None)
    assert done["seconds"] == pytest.approx(30.0, abs=0.1)
    assert job(wire, second)["state"] == "running"


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
def test_what_is_wrong_is_refused_at_once_and_told_where(
    wire: Wire, worker: Held, body: Json, status: int, path: str
) -> None:
    assert paths(expect_problem(wire.post(PATH, body), status)) == [path]
    wire.sleep(0.0)
    assert worker.processes == []


def test_a_log_that_no_other_process_can_read_is_refused_at_once(wire: Wire) -> None:
    assert "memory://" in expect_problem(wire.post(PATH, {}), 422)["detail"]
    expect_problem(wire.post("/experiments/mall/evaluations", {}), 404)


def test_a_cancelled_job_ends_its_process_and_makes_way(wire: Wire, worker: Held) -> None:
    first, second, third = start(wire), start(wire), start(wire)
    for path in (second, first):
        assert wire.delete(path).status_code == 204
        assert job(wire, path)["state"] == "cancelled"
    assert worker.processes[0][1].cancelled()
    assert job(wire, second)["seconds"] is None
    assert job(wire, third)["state"] == "running"
    assert len(worker.processes) == 2  # the second was never started


def test_an_ended_job_is_forgotten_on_request(wire: Wire, worker: Held) -> None:
    path = ended(wire, worker)
    assert wire.delete(path).status_code == 204
    for method in ("GET", "DELETE"):
        problem = expect_problem(wire.request(method, path), 404)
        assert paths(problem) == ["id"]
    assert (
        f"the newest {KEPT_JOBS} of an experiment and {KEPT_JOBS_IN_ALL} in all"
        in problem["detail"]
    )
    assert "an hour" in problem["detail"]


@pytest.mark.parametrize(
    ("fault", "status", "detail"),
    [
        (RefusalLine("Invalid", "too long", "decisions"), 422, "too long"),
        (RefusalLine("NotFound", "it was deleted"), 404, "it was deleted"),
        (StoreUnavailable("gone"), 503, "try again"),
        (ProcessEnded("its process was ended by SIGKILL"), 500, "by SIGKILL"),
        (RuntimeError("secret"), 500, "it was logged"),
    ],
)
def test_a_failed_job_has_its_reason(
    wire: Wire, worker: Held, fault: Result | Exception, status: int, detail: str
) -> None:
    path = start(wire)
    worker.finish(fault)
    wire.sleep(0.0)
    failed = job(wire, path)
    assert (failed["state"], failed["result"]) == ("failed", None)
    assert failed["problem"]["status"] == status
    assert detail in failed["problem"]["detail"]
    assert wire.post(PATH, {}).status_code == 202


def test_few_wait_and_others_are_told_what_is_allowed(wire: Wire, worker: Held) -> None:
    started = [start(wire) for _ in range(5)]
    problem = expect_problem(wire.post(PATH, {}), 429)
    assert "one runs and 4 wait already (FORAGE_EVALUATION_QUEUE)" in problem["detail"]
    assert wire.delete(started[-1]).status_code == 204
    start(wire)
    expect_problem(wire.post(PATH, {}), 429)


def test_one_key_takes_half_of_the_places(keys: Keys) -> None:
    clock = VirtualClock()
    with serving(clock=clock, keys=keys.path) as wire:
        worker = holding(wire, clock)
        own, other = keys.headers("bound"), keys.headers("admin")
        first, _ = start(wire, headers=own), start(wire, headers=own)
        problem = expect_problem(wire.post(PATH, {}, headers=own), 429)
        assert "this key has 2 evaluations under way" in problem["detail"]
        start(wire, headers=other)
        worker.finish()
        wire.sleep(0.0)
        start(wire, headers=own)
        assert wire.get(first, headers=other).json()["state"] == "done"
        assert wire.get(first, headers=keys.headers("elsewhere")).status_code == 403
        assert wire.delete(first, headers=keys.headers("select")).status_code == 403


def test_the_newest_results_of_an_experiment_are_kept(wire: Wire, worker: Held) -> None:
    define(wire, "mall")
    other = ended(wire, worker, "mall")
    own = [ended(wire, worker) for _ in range(KEPT_JOBS + 1)]
    expect_problem(wire.get(own[0]), 404)
    assert {job(wire, path)["state"] for path in (*own[1:], other)} == {"done"}
    running = start(wire)
    assert job(wire, own[1])["state"] == job(wire, other)["state"] == "done"
    assert job(wire, running)["state"] == "running"


def test_few_results_are_kept_in_all(wire: Wire, worker: Held) -> None:
    names = [f"mall-{number}" for number in range(KEPT_JOBS_IN_ALL // KEPT_JOBS + 1)]
    for name in names:
        define(wire, name)
    kept = [ended(wire, worker, name) for name in names for _ in range(KEPT_JOBS)]
    known = [wire.get(path).status_code == 200 for path in kept]
    assert known == [False] * KEPT_JOBS + [True] * KEPT_JOBS_IN_ALL


def test_a_result_is_kept_for_an_hour(wire: Wire, worker: Held, clock: VirtualClock) -> None:
    path = ended(wire, worker)
    running = start(wire)
    clock.skip(KEPT_SECONDS - 1.0)
    assert job(wire, path)["state"] == "done"
    clock.skip(2.0)
    expect_problem(wire.get(path), 404)
    assert job(wire, running)["state"] == "running"


def test_a_job_belongs_to_its_experiment_and_its_process(
    wire: Wire, worker: Held, clock: VirtualClock
) -> None:
    define(wire, "mall")
    path = start(wire)
    for method in ("GET", "DELETE"):
        expect_problem(wire.request(method, path.replace("shop", "mall")), 404)
    assert job(wire, path)["state"] == "running"
    with serving(clock=clock) as replica:
        expect_problem(replica.get(path), 404)


def test_the_end_of_a_service_cancels_its_jobs_before_its_log_is_closed(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    with serving(clock=clock) as wire:
        worker = holding(wire, clock)
        for _ in range(3):
            start(wire)
        runs, log = list(worker._runs), wire.services.log
        close = log.close

        async def closed() -> None:
            states.extend(run.state for run in runs)
            await close()

        monkeypatch.setattr(log, "close", closed)
    assert states == ["cancelled"] * 3
    assert len(worker.processes) == 1
    assert worker.processes[0][1].cancelled()


def define(wire: Wire, name: str) -> None:
    definition = load_definition(SHOP)[1].model_dump(mode="json", exclude_unset=True)
    assert wire.put(f"/experiments/{name}", definition).status_code == 201
