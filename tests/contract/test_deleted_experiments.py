"""An experiment that is deleted and defined again is another one, on every store: nothing of the
deleted one counts, is learned or is answered, also after a restart."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.service import Json, Wire, expect_problem, serving
from tests.support.stores import Backend

KEYED = {"Idempotency-Key": "visit-1"}
VISIT = {"id": "old-1", "at": 1_600_000_000, "arm": "mouse", "propensity": 0.5, "reward": 1.0}
VISIT["context"] = {"persona": "cat"}
DUE_S = 60.0


@pytest.fixture
def wire(backend: Backend) -> Iterator[Wire]:
    with serving(backend.make()) as wire:
        wire.redefine(reward={"wait_seconds": DUE_S, "default": 0.0})
        yield wire


def define_again(wire: Wire, **parts: Any) -> None:
    definition = wire.definition()
    assert wire.delete("/experiments/shop").status_code == 204
    assert wire.put("/experiments/shop", {**definition, **parts}).status_code == 201


def keyed(wire: Wire) -> Json:
    body = {"context": {"persona": "cat"}, "policy": "linucb"}
    answer = wire.post("/select", body, headers=KEYED)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def imported(wire: Wire) -> str:
    body = {"policy": "linucb", "visits": [VISIT]}
    answer = wire.post("/experiments/shop/import", body).json()["results"][0]["answer"]
    return str(answer)


def figures(wire: Wire) -> dict[str, int]:
    """Decisions and rewards of each policy, as every route that has them says."""
    status = wire.get("/experiments/shop/status").json()["figures"]
    policies = wire.get("/experiments/shop/policies").json()["policies"]
    assert [each["decisions"] for each in policies] == [each["decisions"] for each in status]
    counts = {f"decisions of {each['name']}": each["decisions"] for each in status}
    return counts | {f"rewards of {each['name']}": each["settled"] for each in status}


def test_counts_begin_again(wire: Wire) -> None:
    wire.teach(3)
    assert figures(wire)["decisions of linucb"] == 3
    define_again(wire)
    assert set(figures(wire).values()) == {0}
    assert wire.get("/experiments/shop/decisions").json()["decisions"] == []
    samples = wire.metrics().items()
    counted = [name for name, value in samples if "_total{" in name and value and "shop" in name]
    assert counted == []
    wire.teach(2)
    assert figures(wire)["decisions of linucb"] == 2
    assert figures(wire)["rewards of linucb"] == 2


def test_decisions_of_the_deleted_one_are_gone(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    ahead = wire.select(policy="linucb", deferred=True)
    define_again(wire)
    wire.refuse(410, decision)
    wire.refuse(410, ahead)
    expect_problem(wire.post(f"/decisions/{ahead['id']}/activate", {}), 410)
    expect_problem(wire.get(f"/decisions/{decision['id']}"), 410)
    wire.teach()


def test_they_are_gone_after_a_restart_too(backend: Backend) -> None:
    with serving(backend.make()) as wire:
        wire.teach()
        decision = wire.select(policy="linucb")
        define_again(wire)
        wire.teach(2)
    with serving(backend.make()) as wire:  # from a snapshot
        wire.refuse(410, decision)
        assert figures(wire)["decisions of linucb"] == 2


def test_default_rewards_of_the_deleted_one_do_not_fall_due(wire: Wire) -> None:
    for _ in range(3):
        wire.select(policy="linucb")
    define_again(wire)
    wire.select(policy="linucb")
    wire.pass_by(DUE_S + 1.0)
    assert wire.policy("linucb")["rewards"] == 1
    due = wire.services.store.due("shop", wire.clock.time(), 10)
    assert wire.run(due) == []  # nobody looks for them again


def test_keys_and_imports_name_other_decisions(wire: Wire) -> None:
    first = keyed(wire)
    assert keyed(wire)["id"] == first["id"]
    assert imported(wire) == "imported"
    assert imported(wire) == "duplicate"
    define_again(wire)
    second = keyed(wire)
    assert second["id"] != first["id"]
    assert wire.reward(second, 1.0) == "accepted"
    assert imported(wire) == "imported"
    assert figures(wire)["rewards of linucb"] == 2
