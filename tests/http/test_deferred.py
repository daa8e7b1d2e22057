"""Deferred decisions: learned from only once they are activated."""

from collections.abc import Iterator

import pytest

from service.log.stores.memory import MemoryStore
from tests.support.clock import VirtualClock
from tests.support.service import Json, Wire, expect_problem, serving
from tests.support.stores import Disk

WAIT_S, ACCEPT_S = 60.0, 600.0
RULES = {"range": [0, 1], "wait_seconds": WAIT_S, "accept_seconds": ACCEPT_S}


@pytest.fixture
def brief(clock: VirtualClock) -> Iterator[Wire]:
    """A wait window of a minute."""
    with serving(clock=clock) as wire:
        wire.redefine(reward=RULES)
        yield wire


def deferred(wire: Wire, **question: object) -> Json:
    return wire.select(policy="linucb", deferred=True, **question)


def activate(wire: Wire, decision: Json) -> str:
    answer = wire.post(f"/decisions/{decision['id']}/activate")
    assert answer.status_code == 200, answer.text
    status: str = answer.json()["status"]
    return status


def test_a_deferred_decision_never_expires_until_it_is_activated(brief: Wire) -> None:
    shown, hidden = brief.select(policy="linucb"), deferred(brief)
    brief.pass_by(2 * WAIT_S)
    assert brief.rewards() == 1
    assert [brief.explain(one)["activated"] for one in (hidden, shown)] == [False, None]
    assert activate(brief, hidden) == "activated"
    brief.pass_by(0)
    assert brief.rewards() == 2
    told = brief.explain(hidden)
    assert told["activated"] is True
    assert [one["default"] for one in told["learned"]] == [True]
    assert brief.reward(shown, 1.0) == brief.reward(hidden, 1.0) == "corrected"


def test_a_reward_is_refused_before_the_activation_and_taken_after_it(wire: Wire) -> None:
    decision, slate = deferred(wire), deferred(wire, top_k=2)
    assert "activate" in wire.refuse(409, decision)["detail"]
    assert wire.rewards() == 0
    assert activate(wire, decision) == activate(wire, slate) == "activated"
    assert wire.reward(decision, 1.0) == "accepted"
    assert wire.rewards() == 1
    assert wire.reward(slate, feedback="cascade", clicked=slate["arm"]) == "accepted"


def test_an_activation_happens_once(brief: Wire) -> None:
    decision = deferred(brief)
    assert [activate(brief, decision) for _ in range(3)] == ["activated", *["duplicate"] * 2]
    brief.pass_by(WAIT_S)
    assert brief.rewards() == 1
    assert activate(brief, decision) == "duplicate"
    brief.pass_by(WAIT_S)
    assert brief.rewards() == 1


def test_refused_activations_and_keys(clock: VirtualClock, wire: Wire) -> None:
    expect_problem(wire.post(f"/decisions/{wire.select()['id']}/activate"), 409)
    expect_problem(wire.post("/decisions/nothing/activate"), 404)
    decision = deferred(wire)
    expect_problem(wire.post(f"/decisions/{decision['id']}/activate?experiment=other"), 404)
    headers, body = {"Idempotency-Key": "k"}, {"context": {"persona": "cat"}}
    assert wire.post("/select", {**body, "deferred": True}, headers=headers).status_code == 200
    expect_problem(wire.post("/select", body, headers=headers), 409)
    wire.redefine(reward=RULES)
    late = deferred(wire)
    clock.skip(WAIT_S + ACCEPT_S)
    expect_problem(wire.post(f"/decisions/{late['id']}/activate"), 410)


def test_an_activation_is_taken_up_to_half_a_second_before_accept_until(
    clock: VirtualClock, brief: Wire
) -> None:
    """60 s to wait and 600 to accept: one after 659.5 s is taken, one after 660.5 s is not."""
    first, second = deferred(brief), deferred(brief)
    clock.skip(659.5)
    assert activate(brief, first) == "activated"
    clock.skip(1)
    expect_problem(brief.post(f"/decisions/{second['id']}/activate"), 410)


def test_without_a_default_reward_an_activated_decision_waits_for_its_own(wire: Wire) -> None:
    wire.redefine(reward={**RULES, "default": "none"})
    decision = deferred(wire)
    activate(wire, decision)
    wire.pass_by(WAIT_S)
    assert wire.rewards() == 0
    assert wire.reward(decision, 1.0) == "accepted"


def test_an_activation_outlives_a_restart() -> None:
    store = MemoryStore()
    with serving(store) as wire:
        decision, other = deferred(wire), deferred(wire)
        activate(wire, decision)
    with serving(store) as wire:
        assert activate(wire, decision) == "duplicate"
        assert wire.reward(decision, 1.0) == "accepted"
        assert activate(wire, other) == "activated"


def test_without_a_log_an_activation_is_not_acknowledged_and_can_be_sent_again() -> None:
    disk = Disk()
    with serving(disk) as wire:
        before = deferred(wire)
        disk.full = True
        waiting = deferred(wire)
        assert waiting["logged"] is False
        for decision in (before, waiting):
            expect_problem(wire.post(f"/decisions/{decision['id']}/activate"), 503)
        disk.full = False
        wire.until(lambda: not wire.services.log.committer.degraded)
        for decision in (before, waiting):
            assert activate(wire, decision) == "activated"
            assert wire.reward(decision, 1.0) == "accepted"


def test_a_process_that_has_not_met_the_experiment_activates_with_its_default(brief: Wire) -> None:
    """Another one defined it: the default is of the definition, which has to be read first."""
    decision = deferred(brief)
    log = brief.services.log
    known = log.replicas.by_name.pop("shop")
    answer = brief.post(f"/decisions/{decision['id']}/activate?experiment=shop")
    assert answer.json() == {"status": "activated"}
    assert log.replicas.by_name["shop"] is not known
    brief.pass_by(WAIT_S)
    assert brief.rewards() == 1
