"""POST /reward: every form, once each, whatever is sent twice."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.service import Json, Wire, expect_problem, paths


def learned(wire: Wire, decision: Json) -> dict[str, float]:
    """What has been learned of each arm of a decision."""
    found = wire.get(f"/decisions/{decision['id']}").json()["learned"]
    return {arm["arm"]: arm["reward"] for arm in found}


def slate(wire: Wire) -> tuple[Json, list[str]]:
    """A decision that shows three arms, and their ids from the top."""
    decision = wire.select(policy="linucb", top_k=3)
    return decision, [slot["arm"] for slot in decision["ranking"]]


def refused(wire: Wire, decision: Json, status: int, **body: Any) -> Json:
    answer = wire.post("/reward", {"decision_id": decision["decision_id"], **body})
    return expect_problem(answer, status)


def test_a_reward_is_accepted_and_learned(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    assert wire.reward(decision, 0.5) == "accepted"
    assert learned(wire, decision) == {decision["arm"]: 0.5}
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 0.5)


def test_only_the_policy_that_decided_learns(wire: Wire) -> None:
    wire.reward(wire.select(policy="linucb"), 1.0)
    assert wire.policy("linucb")["head"]["effective_count"] == 1
    assert wire.policy("lints")["head"]["effective_count"] == 0


# -- the forms of feedback -----------------------------------------------------------------------


@pytest.mark.parametrize("clicked", [0, 1, 2])
def test_a_cascade_was_looked_at_down_to_the_click(wire: Wire, clicked: int) -> None:
    decision, arms = slate(wire)
    assert wire.reward(decision, feedback="cascade", clicked=arms[clicked]) == "accepted"
    above = dict.fromkeys(arms[:clicked], 0.0)
    assert learned(wire, decision) == {**above, arms[clicked]: 1.0}


@pytest.mark.parametrize("body", [{"clicked": None}, {}])
def test_a_cascade_without_a_click_was_looked_at_to_the_end(wire: Wire, body: Json) -> None:
    decision, arms = slate(wire)
    assert wire.reward(decision, feedback="cascade", **body) == "accepted"
    assert learned(wire, decision) == dict.fromkeys(arms, 0.0)


def test_a_second_cascade_settles_nothing_that_the_first_left_unseen(wire: Wire) -> None:
    decision = wire.select(policy="linucb", top_k=3)
    first, _, third = (slot["arm"] for slot in decision["ranking"])
    click = {"feedback": "cascade", "clicked": first, "reward_id": "one"}
    assert wire.reward(decision, **click) == "accepted"
    other = {"feedback": "cascade", "clicked": third, "reward_id": "two"}
    assert wire.reward(decision, **other) == "duplicate"
    assert learned(wire, decision) == {first: 1.0}
    assert wire.policy("linucb")["head"]["effective_count"] == 1


def test_a_cascade_of_one_arm_is_a_click_or_none(wire: Wire) -> None:
    decision = wire.select()
    assert wire.reward(decision, feedback="cascade", clicked=decision["arm"]) == "accepted"
    assert learned(wire, decision) == {decision["arm"]: 1.0}


def test_rewards_by_arm_may_come_one_after_another(wire: Wire) -> None:
    decision, (first, second, third) = slate(wire)
    assert wire.reward(decision, rewards={second: 1.0}) == "accepted"
    assert wire.reward(decision, rewards={second: 1.0, first: 0.25}) == "accepted"
    assert wire.reward(decision, rewards={second: 1.0, first: 0.25}) == "duplicate"
    assert learned(wire, decision) == {second: 1.0, first: 0.25}
    assert wire.reward(decision, rewards={third: 0.0}) == "accepted"
    assert wire.policy("linucb")["rewards"] == 3


def test_rewards_of_a_slate_settle_all_or_none(wire: Wire) -> None:
    decision, (first, second, _) = slate(wire)
    wire.reward(decision, rewards={first: 1.0})
    refused(wire, decision, 409, rewards={first: 0.0, second: 1.0})
    assert learned(wire, decision) == {first: 1.0}


def test_a_slate_needs_to_know_which_arm(wire: Wire) -> None:
    decision, arms = slate(wire)
    assert paths(refused(wire, decision, 422, reward=1.0)) == ["reward"]
    problem = refused(wire, decision, 422, rewards={arms[0]: 1.0, "bone": 1.0})
    assert paths(problem) == ["rewards.bone"]
    assert paths(refused(wire, decision, 422, feedback="cascade", clicked="bone")) == ["clicked"]
    assert learned(wire, decision) == {}


def test_a_reward_has_one_form(wire: Wire) -> None:
    decision = wire.select()
    arm = decision["arm"]
    for body in (
        {},
        {"reward": 1.0, "rewards": {arm: 1.0}},
        {"reward": 1.0, "feedback": "cascade"},
        {"reward": 1.0, "clicked": arm},
        {"clicked": arm},
        {"rewards": {}},
        {"feedback": "stars"},
    ):
        refused(wire, decision, 422, **body)
    assert learned(wire, decision) == {}


# -- identity ------------------------------------------------------------------------------------


def test_the_same_again_is_a_duplicate_and_changes_nothing(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    wire.reward(decision, 1.0)
    before = wire.policy("linucb")
    assert [wire.reward(decision, 1.0) for _ in range(3)] == ["duplicate"] * 3
    assert wire.policy("linucb") == before


def test_another_value_under_the_same_identity_conflicts(wire: Wire) -> None:
    decision = wire.select()
    wire.reward(decision, 1.0)
    refused(wire, decision, 409, reward=0.0)
    assert learned(wire, decision) == {decision["arm"]: 1.0}


def at_once(wire: Wire, decision: Json, rewards: list[float]) -> list[tuple[int, str | None]]:
    async def all_of_them() -> list[tuple[int, str | None]]:
        bodies = [{"decision_id": decision["decision_id"], "reward": r} for r in rewards]
        sent = (wire.client.post("/reward", json=body) for body in bodies)
        answers = await asyncio.gather(*sent)
        return [(answer.status_code, answer.json().get("status")) for answer in answers]

    return wire.run(all_of_them())


def test_of_the_same_reward_sent_at_once_one_is_accepted(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    counts = Counter(at_once(wire, decision, [1.0] * 20))
    assert counts == {(200, "accepted"): 1, (200, "duplicate"): 19}
    assert wire.policy("linucb")["rewards"] == 1


def test_of_different_rewards_sent_at_once_one_is_accepted(wire: Wire) -> None:
    decision = wire.select()
    counts = Counter(at_once(wire, decision, [number / 10 for number in range(10)]))
    assert counts == {(200, "accepted"): 1, (409, 409): 9}


# -- aggregation ---------------------------------------------------------------------------------


def contribute(wire: Wire, decision: Json, *contributions: tuple[str, float]) -> list[str]:
    return [wire.reward(decision, reward, reward_id=own) for own, reward in contributions]


def test_first_keeps_the_first_word(wire: Wire) -> None:
    decision = wire.select()
    assert contribute(wire, decision, ("a", 0.25), ("b", 1.0)) == ["accepted", "duplicate"]
    assert learned(wire, decision) == {decision["arm"]: 0.25}


@pytest.mark.parametrize(("aggregation", "result"), [("sum", 0.875), ("last", 0.5)])
def test_each_contribution_has_an_id_and_counts_once(
    wire: Wire, aggregation: str, result: float
) -> None:
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward={"aggregation": aggregation})
    decision = wire.select()
    statuses = contribute(
        wire, decision, ("a", 0.25), ("b", 0.125), ("a", 0.25), ("c", 0.5), ("b", 0.125)
    )
    assert statuses == ["accepted", "accepted", "duplicate", "accepted", "duplicate"]
    assert learned(wire, decision) == {decision["arm"]: result}
    refused(wire, decision, 409, reward=1.0, reward_id="b")
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, result)
    assert status["head"]["effective_count"] == 1


def test_contributions_to_a_slate_add_up_by_arm(wire: Wire) -> None:
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward={"aggregation": "sum"})
    decision, (first, second, _) = slate(wire)
    wire.reward(decision, rewards={first: 0.25}, reward_id="a")
    wire.reward(decision, rewards={first: 0.5, second: 0.125}, reward_id="b")
    assert learned(wire, decision) == {first: 0.75, second: 0.125}
