"""Several experiments in one process: none takes the memory that the others need."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.service import Json, Wire, expect_problem, paths, serving

QUOTA = 40 * 2**20


def wide(columns: int, **policy: Any) -> Json:
    """One head of so many columns."""
    return {
        "features": {"context": {"c": {"type": "vector", "size": columns - 1}}},
        "policies": {"p": {"kind": "lints", **policy}},
        "arms": {"one": {}, "other": {}},
    }


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving(experiment_memory_bytes=QUOTA) as wire:
        yield wire


def test_a_definition_that_would_take_too_much_is_refused_with_the_estimate(wire: Wire) -> None:
    """A head of 1,000 columns takes 77 MiB with its draws."""
    problem = expect_problem(wire.put("/experiments/wide", wide(1_000)), 422)
    assert paths(problem) == ["policies.p"]
    assert "77 MiB" in problem["detail"]
    assert "may take 40" in problem["detail"]
    assert wire.get("/experiments/wide").status_code == 404
    assert wire.put("/experiments/wide", wide(500)).status_code == 201


def test_a_definition_that_grows_too_much_is_refused_and_one_that_shrinks_is_not(
    wire: Wire,
) -> None:
    assert wire.put("/experiments/wide", wide(500)).status_code == 201
    expect_problem(wire.put("/experiments/wide", wide(1_000)), 422)
    assert wire.put("/experiments/wide", wide(100)).status_code == 200
    wire.services.admin._memory_bytes = 1
    assert wire.put("/experiments/wide", wide(99)).status_code == 200
    expect_problem(wire.put("/experiments/wide", wide(100)), 422)


def test_arms_count_where_each_has_a_head(wire: Wire) -> None:
    """Of 100 columns half a megabyte each: 80 of them fit, whoever adds them."""
    definition = wide(100, disjoint=True)
    assert wire.put("/experiments/wide", definition).status_code == 201
    arms = {"arms": {str(index): {} for index in range(70)}}
    assert wire.post("/experiments/wide/arms", arms).status_code == 200
    more = {"arms": {f"more {index}": {} for index in range(70)}}
    problem = expect_problem(wire.post("/experiments/wide/arms", more), 422)
    assert paths(problem) == ["policies.p"]
    assert wire.post("/experiments/wide/arms", arms).status_code == 200  # they are there already
    assert len(wire.get("/experiments/wide/arms").json()["arms"]) == 72


def test_what_the_log_has_already_is_served_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    with serving(store) as before:
        assert before.put("/experiments/wide", wide(1_000)).status_code == 201
    with caplog.at_level(logging.WARNING), serving(store, experiment_memory_bytes=QUOTA) as wire:
        assert "experiment wide takes some 77 MiB" in caplog.text
        body = {"experiment": "wide", "context": {"c": [0.0] * 999}}
        assert wire.post("/select", body).status_code == 200
        taken = wire.metrics()['forage_experiment_memory_bytes{experiment="wide"}']
        assert taken == pytest.approx(77 * 2**20, rel=0.02)
