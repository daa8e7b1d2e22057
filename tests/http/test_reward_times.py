"""reward_by and accept_until: the default reward, its correction, and the end."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clock import VirtualClock
from tests.support.service import Json, Wire, expect_problem, serving

WAIT_S = 600.0


@pytest.fixture
def wire(clock: VirtualClock) -> Iterator[Wire]:
    with serving(clock=clock) as wire:
        rules(wire, wait_seconds=WAIT_S)
        yield wire


def rules(wire: Wire, **rules: Any) -> None:
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward=rules)


def expire(wire: Wire) -> Json:
    """A decision that nobody came back for in time."""
    decision = wire.select()
    wire.pass_by(WAIT_S)
    assert wire.policy("linucb")["rewards"] == 1
    return decision


def learned(wire: Wire, decision: Json) -> list[Json]:
    found: list[Json] = wire.get(f"/decisions/{decision['id']}").json()["learned"]
    return sorted(found, key=lambda arm: str(arm["arm"]))


def test_without_a_reward_the_default_is_learned(wire: Wire) -> None:
    decision = expire(wire)
    assert learned(wire, decision) == [{"arm": decision["arm"], "reward": 0.0, "default": True}]
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 0.0)


def test_a_late_reward_corrects_the_default_once(wire: Wire) -> None:
    decision = expire(wire)
    assert wire.reward(decision, 1.0) == "corrected"
    assert wire.reward(decision, 1.0) == "duplicate"
    answer = wire.post("/reward", {"decision_id": decision["decision_id"], "reward": 0.5})
    expect_problem(answer, 409)
    assert learned(wire, decision) == [{"arm": decision["arm"], "reward": 1.0, "default": False}]
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 1.0)
    assert status["head"]["effective_count"] == 1


def test_a_late_reward_that_equals_the_default_confirms_it(wire: Wire) -> None:
    decision = expire(wire)
    assert wire.reward(decision, 0.0) == "corrected"
    assert learned(wire, decision)[0]["default"] is False


@pytest.mark.parametrize("aggregation", ["sum", "last"])
def test_a_late_contribution_replaces_the_default(wire: Wire, aggregation: str) -> None:
    rules(wire, wait_seconds=WAIT_S, default=0.5, aggregation=aggregation)
    decision = expire(wire)
    assert learned(wire, decision)[0]["reward"] == 0.5
    assert wire.reward(decision, 0.25, reward_id="a") == "corrected"
    assert learned(wire, decision)[0]["reward"] == 0.25


def test_a_reward_in_time_leaves_no_default_to_learn(wire: Wire) -> None:
    decision = wire.select()
    assert wire.reward(decision, 1.0) == "accepted"
    wire.pass_by(WAIT_S)
    assert learned(wire, decision) == [{"arm": decision["arm"], "reward": 1.0, "default": False}]
    assert wire.policy("linucb")["rewards"] == 1


def test_the_default_holds_for_the_arms_of_a_slate_that_nobody_settled(wire: Wire) -> None:
    decision = wire.select(top_k=3)
    first, *others = (slot["arm"] for slot in decision["ranking"])
    wire.reward(decision, rewards={first: 1.0})
    wire.pass_by(WAIT_S)
    told = {arm["arm"]: (arm["reward"], arm["default"]) for arm in learned(wire, decision)}
    assert told == {first: (1.0, False), **dict.fromkeys(others, (0.0, True))}


def test_arms_below_the_click_of_a_cascade_are_never_learned_of(wire: Wire) -> None:
    decision = wire.select(top_k=3)
    wire.reward(decision, feedback="cascade", clicked=decision["arm"])
    wire.pass_by(WAIT_S)
    assert [arm["arm"] for arm in learned(wire, decision)] == [decision["arm"]]


def test_a_late_click_takes_the_default_of_the_arms_below_it_back(wire: Wire) -> None:
    rules(wire, wait_seconds=WAIT_S)
    decision = wire.select(policy="linucb", top_k=3)
    first, second, third = (slot["arm"] for slot in decision["ranking"])
    wire.pass_by(2 * WAIT_S)
    wire.until(lambda: wire.policy("linucb")["rewards"] == 3)
    assert {arm["arm"] for arm in learned(wire, decision)} == {first, second, third}
    assert wire.reward(decision, feedback="cascade", clicked=second) == "corrected"
    told = {arm["arm"]: (arm["reward"], arm["default"]) for arm in learned(wire, decision)}
    assert told == {first: (0.0, False), second: (1.0, False)}
    status = wire.policy("linucb")
    assert (status["mean_reward"], status["head"]["effective_count"]) == (0.5, 2)


def test_without_a_default_nothing_is_learned_until_a_reward_comes(wire: Wire) -> None:
    rules(wire, wait_seconds=WAIT_S, default=None)
    decision = wire.select()
    wire.pass_by(2 * WAIT_S)
    assert learned(wire, decision) == []
    assert wire.reward(decision, 1.0) == "accepted"


def test_after_accept_until_a_reward_is_refused(wire: Wire, clock: VirtualClock) -> None:
    rules(wire, wait_seconds=WAIT_S, accept_seconds=60)
    decision = expire(wire)
    clock.skip(60)
    answer = wire.post("/reward", {"decision_id": decision["decision_id"], "reward": 1.0})
    assert expect_problem(answer, 410)["type"].endswith("/too-late")
    assert learned(wire, decision)[0]["default"] is True


def test_accept_until_is_exact_to_half_a_second(wire: Wire, clock: VirtualClock) -> None:
    """600 s to wait and 60 to accept: a reward after 659.5 s counts, one after 660.5 s does not."""
    rules(wire, wait_seconds=WAIT_S, accept_seconds=60, default=None)
    first, second = wire.select(), wire.select()
    clock.skip(659.5)
    assert wire.reward(first, 1.0) == "accepted"
    clock.skip(1)
    answer = wire.post("/reward", {"decision_id": second["decision_id"], "reward": 1.0})
    expect_problem(answer, 410)
    assert wire.policy("linucb")["rewards"] == 1


def test_the_default_is_not_learned_half_a_second_before_reward_by(wire: Wire) -> None:
    """600 s to wait: nothing is learned after 599.5 s, and the default after 600.5 s."""
    decision = wire.select()
    wire.pass_by(599.5)
    assert learned(wire, decision) == []
    wire.pass_by(1)
    assert learned(wire, decision)[0]["default"] is True


def test_an_open_decision_keeps_the_times_it_was_given(wire: Wire) -> None:
    decision = wire.select()
    rules(wire, wait_seconds=1, accept_seconds=1)
    wire.pass_by(60)
    assert learned(wire, decision) == []
    assert wire.reward(decision, 1.0) == "accepted"
