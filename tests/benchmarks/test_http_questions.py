"""Benchmarks of one question over HTTP: what is counted, and how it becomes figures."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.http import catalogue, replicas, training
from benchmarks.http.servers import QUIET
from benchmarks.http.turns import Turn, added, at_least, figures
from benchmarks.retrieval import WIDTH
from service.definition.experiment import load_definition
from service.definition.policies import Network
from simulator_client.load_tally import Tally


def tally(*seconds: float, counted_s: float = 2.0) -> Tally:
    """Of a turn whose selects took so long."""
    found = Tally()
    for each in seconds:
        found.latencies["select"].record(each)
        found.second(0, "select")
    found.answered["select"] = len(seconds)
    found.cores, found.counted_s = [0.25], [counted_s]
    return found


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


@pytest.mark.slow
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
