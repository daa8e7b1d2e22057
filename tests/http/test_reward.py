"""POST /reward: every form; each reward counts once, however often it is sent."""

import asyncio
from collections import Counter

import pytest

from tests.support.service import Json, Wire, paths


def slate(wire: Wire) -> tuple[Json, list[str]]:
    """Make a decision that shows three arms; return their ids from the top."""
    decision = wire.select(policy="linucb", top_k=3)
    return decision, [slot["arm"] for slot in decision["ranking"]]


def test_only_the_policy_that_decided_learns(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    assert wire.reward(decision, 0.5) == "accepted"
    assert wire.learned(decision) == {decision["arm"]: 0.5}
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, 0.5)
    assert status["head"]["effective_count"] == 1
    assert wire.policy("lints")["head"]["effective_count"] == 0


# -- the forms of feedback -----------------------------------------------------------------------


@pytest.mark.parametrize("clicked", [0, 1, 2])
def test_a_cascade_was_seen_down_to_the_click(wire: Wire, clicked: int) -> None:
    decision, arms = slate(wire)
    assert wire.reward(decision, feedback="cascade", clicked=arms[clicked]) == "accepted"
    above = dict.fromkeys(arms[:clicked], 0.0)
    assert wire.learned(decision) == {**above, arms[clicked]: 1.0}


@pytest.mark.parametrize("body", [{"clicked": None}, {}])
def test_a_cascade_without_a_click_was_seen_to_the_end(wire: Wire, body: Json) -> None:
    decision, arms = slate(wire)
    assert wire.reward(decision, feedback="cascade", **body) == "accepted"
    assert wire.learned(decision) == dict.fromkeys(arms, 0.0)


def test_a_second_cascade_settles_none_of_the_arms_that_the_first_left_unseen(wire: Wire) -> None:
    decision, (first, _, third) = slate(wire)
    for reward_id, clicked, status in (("a", first, "accepted"), ("b", third, "ignored")):
        click = {"feedback": "cascade", "clicked": clicked, "reward_id": reward_id}
        assert wire.reward(decision, **click) == status
    assert wire.learned(decision) == {first: 1.0}
    assert wire.policy("linucb")["head"]["effective_count"] == 1


def test_a_cascade_of_one_arm_is_a_click_or_none(wire: Wire) -> None:
    decision = wire.select()
    assert wire.reward(decision, feedback="cascade", clicked=decision["arm"]) == "accepted"
    assert wire.learned(decision) == {decision["arm"]: 1.0}


def test_rewards_by_arm_may_come_one_after_another(wire: Wire) -> None:
    decision, (first, second, third) = slate(wire)
    assert wire.reward(decision, rewards={second: 1.0}) == "accepted"
    assert wire.reward(decision, rewards={second: 1.0, first: 0.25}) == "accepted"
    assert wire.reward(decision, rewards={second: 1.0, first: 0.25}) == "duplicate"
    wire.refuse(409, decision, None, rewards={first: 0.0, third: 1.0})  # all or none
    assert wire.learned(decision) == {second: 1.0, first: 0.25}
    assert wire.reward(decision, rewards={third: 0.0}) == "accepted"
    assert wire.rewards() == 3


def test_a_slate_needs_to_know_which_arm(wire: Wire) -> None:
    decision, arms = slate(wire)
    assert paths(wire.refuse(422, decision, 1.0)) == ["reward"]
    problem = wire.refuse(422, decision, None, rewards={arms[0]: 1.0, "bone": 1.0})
    assert paths(problem) == ["rewards.bone"]
    problem = wire.refuse(422, decision, None, feedback="cascade", clicked="bone")
    assert paths(problem) == ["clicked"]
    assert wire.learned(decision) == {}


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
        wire.refuse(422, decision, **{"reward": None, **body})  # type: ignore[arg-type]
    assert wire.learned(decision) == {}


# -- identity ------------------------------------------------------------------------------------


def test_a_repeated_reward_is_a_duplicate_and_another_value_conflicts(wire: Wire) -> None:
    decision = wire.select(policy="linucb")
    wire.reward(decision, 1.0)
    before = wire.policy("linucb")
    assert [wire.reward(decision, 1.0) for _ in range(3)] == ["duplicate"] * 3
    wire.refuse(409, decision, 0.0)
    assert wire.policy("linucb") == before
    assert wire.learned(decision) == {decision["arm"]: 1.0}


@pytest.mark.parametrize(
    ("rewards", "others"),
    [([1.0] * 20, (200, "duplicate")), ([number / 10 for number in range(10)], (409, 409))],
)
def test_of_simultaneous_rewards_one_is_accepted(
    wire: Wire, rewards: list[float], others: tuple[int, object]
) -> None:
    decision = wire.select(policy="linucb")

    async def send_all() -> list[tuple[int, object]]:
        bodies = [{"decision_id": decision["decision_id"], "reward": r} for r in rewards]
        sent = (wire.client.post("/reward", json=body) for body in bodies)
        answers = await asyncio.gather(*sent)
        return [(answer.status_code, answer.json()["status"]) for answer in answers]

    counts = Counter(wire.run(send_all()))
    assert counts == {(200, "accepted"): 1, others: len(rewards) - 1}
    assert wire.rewards() == 1


# -- aggregation ---------------------------------------------------------------------------------


def contribute(wire: Wire, decision: Json, *contributions: tuple[str, float]) -> list[str]:
    return [wire.reward(decision, reward, reward_id=own) for own, reward in contributions]


def test_first_keeps_the_first_value(wire: Wire) -> None:
    decision = wire.select()
    assert contribute(wire, decision, ("a", 0.25), ("b", 1.0)) == ["accepted", "ignored"]
    assert contribute(wire, decision, ("a", 0.25), ("b", 1.0)) == ["duplicate", "ignored"]
    assert wire.learned(decision) == {decision["arm"]: 0.25}


@pytest.mark.parametrize("value", [0.25, 1.0])
def test_a_reward_that_the_first_leaves_no_room_for_is_ignored_with_its_reason(
    wire: Wire, value: float
) -> None:
    """A purchase after a click, whatever its value."""
    decision = wire.select()
    wire.reward(decision, 0.25, reward_id="click")
    purchase = {"decision_id": decision["decision_id"], "reward": value, "reward_id": "order"}
    answer = wire.post("/reward", purchase).json()
    assert answer == {
        "status": "ignored",
        "reason": "the first reward of an arm counts (reward.aggregation is first), and an earlier "
        f"one under another reward_id settled '{decision['arm']}'",
    }
    batch = wire.post("/reward/batch", {"requests": [purchase] * 2}).json()
    assert [item["answer"] for item in batch["results"]] == [answer] * 2
    assert wire.post("/beacon", {"rewards": [purchase]}).json() == {"statuses": [200]}
    assert wire.learned(decision) == {decision["arm"]: 0.25}


def test_a_reward_that_counts_in_part_says_for_which_arms_it_does_not(wire: Wire) -> None:
    decision, (first, second, third) = slate(wire)
    wire.reward(decision, rewards={first: 1.0, second: 0.5}, reward_id="a")
    body = {"decision_id": decision["decision_id"], "reward_id": "b"}
    answer = wire.post("/reward", {**body, "rewards": {first: 1.0, second: 0.5, third: 0.0}}).json()
    assert answer["status"] == "accepted"
    assert answer["reason"].endswith(f"settled '{first}', '{second}'")
    again = wire.post("/reward", {**body, "rewards": {first: 1.0, second: 0.5, third: 0.0}}).json()
    assert again == {**answer, "status": "duplicate"}
    assert wire.learned(decision) == {first: 1.0, second: 0.5, third: 0.0}


def test_without_a_reason_an_answer_is_a_status_alone(wire: Wire) -> None:
    body = {"decision_id": wire.select()["decision_id"], "reward": 1.0}
    assert wire.post("/reward", body).json() == {"status": "accepted"}
    assert wire.post("/reward", body).json() == {"status": "duplicate"}


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
    assert wire.explain(decision)["learned"] == [
        {"arm": decision["arm"], "reward": result, "default": False, "weight": 1.0}
    ]
    wire.refuse(409, decision, 1.0, reward_id="b")
    status = wire.policy("linucb")
    assert (status["rewards"], status["mean_reward"]) == (1, result)
    assert status["head"]["effective_count"] == 1


def test_contributions_to_a_slate_add_up_by_arm(wire: Wire) -> None:
    wire.redefine(policies={"linucb": {"kind": "linucb"}}, reward={"aggregation": "sum"})
    decision, (first, second, _) = slate(wire)
    wire.reward(decision, rewards={first: 0.25}, reward_id="a")
    wire.reward(decision, rewards={first: 0.5, second: 0.125}, reward_id="b")
    assert wire.learned(decision) == {first: 0.75, second: 0.125}
