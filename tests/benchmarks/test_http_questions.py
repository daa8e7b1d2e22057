"""Benchmarks of one question over HTTP: what is counted, and how it becomes figures."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.command import RESULTS, keep
from benchmarks.http import catalogue, replicas, steady, training, turns
from benchmarks.http.cases import CASES, ECHO
from benchmarks.http.servers import QUIET, Server, trainer
from benchmarks.http.turns import Turn, added, at_least, cell, figures
from benchmarks.retrieval import WIDTH
from benchmarks.support.process import Service
from service.experiment import Definition, load_definition
from service.http.schemas import SelectBody
from service.policies.settings import Network
from simulator_client.load_plan import Requests
from simulator_client.load_tally import Tally
from tests.simulator.load_server import LoadServer

QUESTIONS = (steady, training, replicas, catalogue)


def tally(*seconds: float, counted_s: float = 2.0) -> Tally:
    """Of a turn whose selects took so long."""
    found = Tally()
    for each in seconds:
        found.latencies["select"].record(each)
        found.second(0, "select")
    found.answered["select"] = len(seconds)
    found.cores, found.counted_s = [0.25], [counted_s]
    return found


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.__name__)
def test_each_has_help_and_results_of_its_name(
    question: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    name = question.__name__.rpartition(".")[2]
    assert question.parser().parse_args([]).out == RESULTS / f"{name}.json"
    with pytest.raises(SystemExit) as ended:
        question.main(["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks.http.{name}" in capsys.readouterr().out


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.__name__)
def test_one_core_is_not_enough(question: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    with pytest.raises(SystemExit, match="two cores"):
        question.main([])


# -- turns -------------------------------------------------------------------------------------


def test_figures_of_two_turns_are_those_of_all_their_selects() -> None:
    """2 s with 10 and 60 ms, 2 s with 1 ms: three in 4 s, the longest 60 ms, one of 50 or more."""
    whole = added([tally(0.010, 0.060), tally(0.001)])
    told = figures(whole)
    assert (told["count"], told["per_second"], told["max"]) == (3, 0.8, 60.0)
    assert told["p50"] == pytest.approx(10.0, rel=1e-3)  # counted to three digits
    assert (told["errors"], told["client_core"]) == (0, 0.25)
    assert at_least(whole.latencies["select"], 50.0) == 1
    assert at_least(whole.latencies["select"], 60.5) == 0


def test_a_turn_tells_what_each_process_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([1.0, 5.0, 1.5, 9.0])
    monkeypatch.setattr(turns, "cpu_seconds", lambda _: next(used))
    found = turns.turn([], {"first": 1, "second": 2})
    assert found == Turn([], {"first": 0.5, "second": 4.0})


def test_results_are_kept_as_json(tmp_path: Path) -> None:
    keep({"rounds": 1}, tmp_path / "new" / "kept.json")
    assert json.loads((tmp_path / "new" / "kept.json").read_text()) == {"rounds": 1}


def test_a_cell_without_a_figure_is_a_dash() -> None:
    assert (cell(None), cell(1234.5)) == ("-", "1,234.50")


# -- steady ------------------------------------------------------------------------------------


def test_parts_have_70_percent_of_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def turn(plans: list[Any]) -> Turn:
        asked.extend(plans)
        return Turn([tally(0.002, 0.004)], {})

    monkeypatch.setattr(steady, "turn", turn)
    monkeypatch.setattr(steady, "resident_mb", lambda _: 100.0)
    monkeypatch.setattr(steady, "disk", lambda *_: tally(0.001).latencies["select"])
    by_itself = steady.Disk(Path())
    with LoadServer().running() as server:
        there = Server(server.url, 0)
        sides = {
            name: steady.Side(CASES[name], there, {"per_second": rates, "client_core": [core]})
            for name, rates, core in (
                (steady.OURS, [100.0, 1_000.0, 200.0], 0.5),
                (ECHO, [2_000.0], 0.95),
            )
        }
        looks = steady.run(sides[steady.OURS], [sides[ECHO], by_itself], 0, 6.0, 1.0)
    assert [plan.rate for plan in asked[:3]] == [1_400.0, 140.0, 1_400.0]
    assert [plan.seconds for plan in asked[:3]] == [1.0, 6.0, 1.0]
    assert len(asked) == 2 * steady.LOOKS + 1
    assert len({plan.seed for plan in asked}) == steady.LOOKS + 1
    assert looks[:3] == [(0, 100.0), (2, 100.0), (4, 100.0)]
    results: Any = {
        "sides": {name: side.figures() for name, side in sides.items()},
        "disk": by_itself.figures(),
        "resident_mb": looks,
    }
    assert results["sides"][ECHO]["client_bound"]
    assert not results["sides"][steady.OURS]["client_bound"]
    assert results["sides"][steady.OURS]["count"] == 2 * steady.LOOKS
    assert steady.rows(results)[1][:3] == ["linucb, arms left out, SQLite", "140", "1"]
    assert steady.rows(results)[3][:5] == ["the disk alone", "", "", "1.00", "1.00"]
    assert steady.look_rows(results)[1:3] == [
        ["0", "100.0", "-", "-", "4.00", "4.00", "1.00", "1.00"],
        ["2", "100.0", "4.00", "4.00", "4.00", "4.00", "1.00", "1.00"],
    ]


# -- training ----------------------------------------------------------------------------------


def test_training_falls_due_at_every_hundredth_part_more(tmp_path: Path) -> None:
    """And the head is that of the other benchmarks: only the training differs."""
    path = tmp_path / "experiment.toml"
    before = Path(QUIET["FORAGE_EXPERIMENTS"])
    path.write_text(before.read_text() + training.GROWTH)
    (name, own), (other, kept) = load_definition(path), load_definition(before)
    net, was = (each.policies["neural_linear_ts"] for each in (own, kept))
    assert name == other
    assert isinstance(net, Network)
    assert isinstance(was, Network)
    assert net.training == was.training.model_copy(update={"growth": 1.01})
    assert net.model_dump(exclude={"training"}) == was.model_dump(exclude={"training"})


def test_the_trainer_is_told_where_to_look() -> None:
    command = trainer("http://here", "sqlite:///there.db", "--follow")
    assert command[2:] == [
        "service", "train", "--store", "sqlite:///there.db", "--url", "http://here", "--follow"
    ]  # fmt: skip


class Trained(Service):
    """Of which the versions are known that it has when it is asked."""

    def __init__(self, folder: Path, *versions: int) -> None:
        super().__init__(folder, "memory://")
        self._versions = iter(versions)

    def get(self, path: str) -> Any:
        assert path == "/policies/neural_linear_ts"
        return {"version": next(self._versions)}


def test_a_round_has_as_long_without_and_with_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 3 before, 7 after: four were activated. 16.25 s of a core in 65 s: a quarter."""
    at_work: list[str] = []
    asked: list[tuple[int, Any]] = []

    @contextmanager
    def trains(url: str, store: str) -> Iterator[int]:
        at_work.append(store)
        yield 1
        at_work.clear()

    def turn(plans: Any) -> Turn:
        asked.extend((len(at_work), plan) for plan in plans)
        return Turn([tally(0.001, 0.080 if at_work else 0.002) for _ in plans], {})

    used = iter([10.0, 26.25])
    monkeypatch.setattr(training, "training", trains)
    monkeypatch.setattr(training, "turn", turn)
    monkeypatch.setattr(training, "cpu_seconds", lambda _: next(used))
    rates = {case.name: 10.0 * number for number, case in enumerate(training.ASKED, 1)}
    with LoadServer().running() as server:
        serving = Trained(tmp_path, 3, 7)
        serving.url = server.url
        course = training.Course(serving, "sqlite:///here.db", rates)
        course.round(0, 60.0)
    assert [(trainers, plan.rate) for trainers, plan in asked] == [
        (0, 10.0), (0, 20.0), (1, 10.0), (1, 20.0)
    ]  # fmt: skip
    assert {plan.seconds for _, plan in asked} == {60.0}
    assert (course.versions, course.trainer_core) == ([4], [0.25])
    found = training.by_policy(course.counted, rates)
    told = training.rows({"long_ms": training.LONG_MS, "policies": found})
    assert [row[1] for row in told[1:]] == ["without", "with", "without", "with"]
    assert [row[6] for row in told[1:]] == ["0", "1", "0", "1"]
    assert told[2][5] == "80.00"
    rounds = found[training.NET.name]["with"]["rounds"]
    assert [(each["max"], each["long"]) for each in rounds] == [(80.0, 1)]


# -- replicas ----------------------------------------------------------------------------------


def test_a_select_is_counted_by_the_clock_and_by_the_processor() -> None:
    """Four selects in 2 s that took 2 ms of two replicas and 1 ms of Redis."""
    found = Turn(
        [tally(0.001, 0.001, 0.001, 0.001)],
        {"first": 0.0015, "second": 0.0005, "redis": 0.001},
    )
    told = replicas.counted(found, seconds=1.5)
    assert told["per_second"] == 2.0
    assert told["per_core_second"] == 2_000.0
    assert told["per_redis_core"] == 4_000.0
    assert told["us"] == {"first": 375.0, "second": 125.0, "redis": 250.0, "client": 125_000.0}
    assert told["cores"]["client"] == 0.25


def rounds(*per_second: float, core: float, first: float, second: float = 0.0) -> list[Any]:
    return [
        {
            "per_second": each, "per_core_second": core, "per_redis_core": 9.0,
            "us": {"first": first, "second": second}, "cores": {"first": 0.5},
            "errors": 1, "unlogged": 0,
        }
        for each in per_second
    ]  # fmt: skip


def test_two_replicas_beside_one() -> None:
    """By the clock the median of 1.5, 1.25 and 2; by the processor twice 800 beside 1,000."""
    kinds = {
        "one": rounds(10, 20, 10, core=1_000.0, first=200.0),
        "two": rounds(15, 25, 20, core=800.0, first=150.0, second=150.0),
        "one of two": rounds(10, 10, 10, core=800.0, first=200.0, second=50.0),
    }
    found = replicas.judged(kinds)
    assert (found["two_to_one"], found["two_to_one_by_processor"]) == (1.5, 1.6)
    assert (found["fold_us"], found["fold_share"]) == (50.0, 0.25)
    assert found["turns"]["one"]["errors"] == 3
    told = replicas.rows(found)
    assert [row[3] for row in told[1:]] == ["1,000", "1,600", "-"]


# -- catalogue ---------------------------------------------------------------------------------


def test_requests_leave_a_million_arms_out_and_none_comes_twice() -> None:
    Definition.model_validate(catalogue.definition(["linucb", "lints"], 20))
    with LoadServer().running() as server:
        plan = catalogue.asked_of(server.url, "lints", 200.0, 1.0, seed=1)
    assert (plan.rate, plan.seconds, plan.rewards_per_select) == (200.0, 1.0, 0.2)
    requests = Requests(plan, 0)
    asked = [json.loads(requests.select().partition(b"\r\n\r\n")[2]) for _ in range(600)]
    for each in asked:
        SelectBody.model_validate(each)
        assert each.keys() == {"experiment", "policy", "context"}
    assert len({tuple(each["context"]["taste"]) for each in asked}) == 600


def test_a_search_of_every_arm_gives_what_was_decided_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small catalogue the service looks at every arm itself."""
    for name, value in {
        "LEARNED": 100, "VISITS": 50, "COMPARED": 5, "PAGE": 40, "CHANGED": 20, "LOOK_S": 0.2
    }.items():  # fmt: skip
        monkeypatch.setattr(catalogue, name, value)
    store = f"sqlite:///{tmp_path / 'forage.db'}"
    arms = np.random.default_rng(5).standard_normal((100, WIDTH)).round(4)
    rows = dict(zip(map(str, range(100)), arms, strict=True))
    with catalogue.shop(store, tmp_path) as shop:
        shop.ask("PUT", "/experiments/catalogue", catalogue.definition(["linucb"], 20))
        shop.learn("linucb")
        learned = shop.position()
        loaded = catalogue.loaded(shop, rows)
        indexed = catalogue.indexed(shop, ["linucb"])
        made = catalogue.Made(shop, "linucb")
        assert shop.position() == learned + 100
    assert loaded["arms_per_second"] > 0
    assert indexed["resident_mb"] > 10
    state = asyncio.run(catalogue.state_at(store, learned))
    assert (state.position, state.arms) == (learned, {})
    assert state.learners["linucb"].rewards == 100
    assert made.compared(state.learners["linucb"], rows) == {"equal": 1.0, "recall": 1.0}


def test_the_catalogues_table_has_a_row_a_phase() -> None:
    phase = {
        "count": 10, "p50": 1.0, "p99": 2.0, "max": 3.0, "long": 0, "errors": 0, "server_us": 900
    }  # fmt: skip
    found = {"selects": phase, "changing": {**phase, "changed": 25_000}}
    told = catalogue.rows_of({"policies": {"lints": {**found, "equal": 0.9, "recall": 0.95}}})
    assert [row[1] for row in told[1:]] == ["catalogue stays", "25,000 arms change"]
    assert told[1][-2:] == ["0.900", "0.950"]
    assert told[2][-2:] == ["", ""]
