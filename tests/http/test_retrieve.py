"""`retrieve`: candidates that were searched for in a catalogue too large to score."""

import pytest

from service.offline.audit import Audit
from service.state.decisions import decode_decision
from tests.support.service import Wire, expect_problem


def opened(wire: Wire, arms: int = 60) -> None:
    catalogue = {
        f"arm{number}": {"category": ["food", "toy"][number % 2], "brand": f"brand{number}"}
        for number in range(arms)
    }
    wire.redefine(policies={"ts": {"kind": "lints", "retrieve": 3}}, arms=catalogue)


def test_candidates_are_a_part_of_the_catalogue_and_the_row_holds_them(wire: Wire) -> None:
    opened(wire)
    for _ in range(10):
        answer = wire.select()
        wire.reward(answer, 1.0)
    row = wire.run(wire.services.store.decision("shop", answer["id"]))
    assert row is not None
    decision = decode_decision(row)
    assert 3 <= len(decision.arms) < 60
    assert sum(decision.probabilities) == pytest.approx(1.0)
    assert answer["arm"] in decision.arms


def test_an_arm_that_was_removed_is_never_chosen(wire: Wire) -> None:
    opened(wire, 20)
    chosen = {wire.select()["arm"] for _ in range(10)}
    for arm in chosen:
        assert wire.delete(f"/arms/{arm}").status_code in (200, 204)
    assert not chosen & {wire.select()["arm"] for _ in range(30)}


def test_the_audit_derives_such_decisions_again(wire: Wire) -> None:
    opened(wire)
    for number in range(12):
        answer = wire.select(top_k=1 + number % 2)
        if number % 2 == 0:
            wire.reward(answer, 1.0)
    found = wire.run(Audit(wire.services.store, "shop").run())
    assert found.decisions >= 12
    assert found.clean


def test_named_arms_need_no_search_and_disjoint_heads_are_refused(wire: Wire) -> None:
    opened(wire)
    answer = wire.select(arms=["arm7"])
    assert (answer["arm"], answer["propensity"]) == ("arm7", 1.0)
    policies = {"p": {"kind": "lints", "retrieve": 3, "disjoint": True}}
    refused = wire.put("/experiments/shop", json={**wire.definition(), "policies": policies})
    expect_problem(refused, 422)
