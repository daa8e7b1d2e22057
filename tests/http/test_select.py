"""POST /select: what is answered, from which arms, by which policy."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import log, perm

import pytest

from service.definition.select_request import Envelope, SelectRequest
from service.errors import Overdue
from service.security.token import TOKEN_CHARACTERS
from tests.support.service import Wire, expect_problem, paths, serving

CAT = {"persona": "cat"}
TREAT = {"id": "treat", "features": {"category": "food", "brand": "yum"}}


def test_an_answer_says_what_was_chosen_how_likely_and_until_when(wire: Wire) -> None:
    before = datetime.fromtimestamp(wire.clock.time(), UTC)
    answer = wire.select(policy="linucb", unit="user-1")
    assert answer["arm"] in ("kibble", "mouse", "ball")
    assert answer["ranking"] == [{"arm": answer["arm"], "propensity": answer["propensity"]}]
    assert answer["slate_propensity"] is None
    assert answer["slate_log_propensity"] == log(answer["propensity"])
    assert (answer["experiment"], answer["policy"]) == ("shop", "linucb")
    assert answer["model_version"] == "linucb/0@1"
    assert answer["logged"] is True
    assert re.fullmatch(r"[\w-]{22}", answer["id"])
    assert re.fullmatch(r"[\w-]+", answer["decision_id"])
    assert len(answer["decision_id"]) <= TOKEN_CHARACTERS
    reward_by = datetime.fromisoformat(answer["reward_by"])
    assert timedelta(seconds=600) <= reward_by - before < timedelta(seconds=610)
    assert datetime.fromisoformat(answer["accept_until"]) - reward_by == timedelta(seconds=3600)


def test_a_reward_is_in_the_next_answer(wire: Wire) -> None:
    """alpha 0 is greedy: a cold head ties, and a better arm ties with nothing but its equals."""
    wire.redefine(policies={"greedy": {"kind": "linucb", "alpha": 0.0}})
    first = wire.select()
    assert (first["propensity"], first["model_version"]) == (pytest.approx(1 / 3), "greedy/0@2")
    wire.reward(wire.select(arms=["kibble"]), 1.0)
    wire.reward(wire.select(arms=["ball"]), 0.0)
    second = wire.select()
    assert (second["arm"], second["propensity"]) == ("kibble", 1.0)
    assert second["model_version"] == "greedy/0@4"


# -- which policy ------------------------------------------------------------------------------


def test_traffic_without_a_unit_is_shared_as_configured(wire: Wire) -> None:
    """Shares 1 and 3: of 400, lints gets 300 with a standard deviation of 8.7; within 5 of them."""
    counts = Counter(wire.select()["policy"] for _ in range(400))
    assert counts.keys() == {"linucb", "lints"}
    assert abs(counts["lints"] - 300) < 43


def test_a_unit_stays_with_its_policy_and_units_are_shared_as_configured(wire: Wire) -> None:
    units = [f"user-{number}" for number in range(200)]
    assigned = [wire.select(unit=unit)["policy"] for unit in units]
    assert [wire.select(unit=unit)["policy"] for unit in units] == assigned
    assert abs(Counter(assigned)["lints"] - 150) < 31  # 5 standard deviations of 6.1


def test_the_chance_of_an_assignment_is_kept_beside_the_propensity(wire: Wire) -> None:
    split = wire.get(f"/decisions/{wire.select(unit='user-1')['id']}").json()
    assert split["assignment"] == {"linucb": 0.25, "lints": 0.75}[split["policy"]]
    named = wire.get(f"/decisions/{wire.select(policy='lints')['id']}").json()
    assert named["assignment"] == 1.0


def test_a_unit_is_nowhere_in_the_log(wire: Wire) -> None:
    answer = wire.select(unit="user-4711", policy="lints")
    row = wire.run(wire.services.store.decision("shop", answer["id"]))
    assert row is not None
    assert b"user-4711" not in row
    assert "user-4711" not in wire.get(f"/decisions/{answer['id']}").text


# -- from which arms ---------------------------------------------------------------------------


def test_only_arms_that_are_named_are_shown(wire: Wire) -> None:
    asked = [wire.select(arms=["mouse", "ball"], policy="named_only") for _ in range(40)]
    assert {answer["arm"] for answer in asked} == {"mouse", "ball"}  # fails once in 2^39 runs
    assert {answer["policy"] for answer in asked} == {"named_only"}  # which has no share
    assert len({answer["id"] for answer in asked}) == 40
    assert len({answer["decision_id"] for answer in asked}) == 40
    answer = wire.select(arms=["mouse"])
    assert (answer["arm"], answer["propensity"]) == ("mouse", 1.0)
    mixed = wire.select(arms=["mouse", {"id": "treat", "features": {"category": "food"}}], top_k=2)
    assert {slot["arm"] for slot in mixed["ranking"]} == {"mouse", "treat"}


@pytest.mark.parametrize("policy", ["linucb", "lints", "named_only"])
def test_an_arm_outside_the_catalogue_can_be_shown_and_rewarded(wire: Wire, policy: str) -> None:
    answer = wire.select(arms=[TREAT], policy=policy)
    assert answer["arm"] == "treat"
    assert wire.reward(answer, 1.0) == "accepted"
    assert "treat" not in [arm["id"] for arm in wire.get("/arms").json()["arms"]]


def test_an_arm_outside_the_catalogue_gets_no_head_of_its_own(wire: Wire) -> None:
    disjoint = {"kind": "linucb", "disjoint": True, "features": ["persona"]}
    wire.redefine(policies={"disjoint": disjoint})
    wire.reward(wire.select(arms=[TREAT]), 1.0)
    assert wire.policy("disjoint")["head"]["effective_count"] == 0


def test_an_experiment_without_arms_is_asked_with_arms_of_its_own(wire: Wire) -> None:
    wire.redefine(arms={})
    problem = expect_problem(wire.post("/select", {"context": CAT}), 422)
    assert paths(problem) == ["arms"]
    assert wire.select(arms=[TREAT])["arm"] == "treat"


# -- slates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["linucb", "lints", "named_only"])
def test_a_slate_ranks_different_arms_and_says_its_chance(wire: Wire, policy: str) -> None:
    answer = wire.select(top_k=3, policy=policy)
    assert len({slot["arm"] for slot in answer["ranking"]}) == 3
    assert answer["ranking"][0] == {"arm": answer["arm"], "propensity": answer["propensity"]}
    assert 0 < answer["slate_propensity"] <= 1
    pair = wire.select(top_k=2, policy="named_only")  # uniform over three arms
    assert pair["slate_propensity"] == pytest.approx(1 / 6)
    assert pair["slate_log_propensity"] == pytest.approx(log(1 / 6))


def test_a_chance_that_no_float_holds_is_told_by_its_logarithm(wire: Wire) -> None:
    """100 of 2,000 arms at random: 1,900! / 2,000! is e^-757, and 0.0 would be no weight at all."""
    wire.redefine(arms={f"a{number}": {"category": "toy"} for number in range(2_000)})
    answer = wire.select(top_k=100, policy="named_only")
    for told in (answer, wire.explain(answer)):
        assert told["slate_propensity"] is None
        assert told["slate_log_propensity"] == pytest.approx(-log(perm(2_000, 100)))


def test_top_k_is_bounded_by_the_arms_and_by_a_setting(wire: Wire) -> None:
    too_many = wire.post("/select", {"context": CAT, "top_k": 4})
    assert expect_problem(too_many, 422)["errors"] == [
        {"path": "top_k", "message": "must be from 1 to 3, the number of arms"}
    ]
    with serving(max_top_k=2) as small:
        refused = small.post("/select", {"context": CAT, "top_k": 3})
        assert expect_problem(refused, 422)["errors"] == [
            {"path": "top_k", "message": "must be from 1 to 2, the most that this service ranks"}
        ]
        assert len(small.select(top_k=2)["ranking"]) == 2


def test_an_arm_that_is_given_twice_is_named(wire: Wire) -> None:
    arms = ["kibble", "ball", {"id": "ball", "features": {"category": "toy"}}]
    refused = expect_problem(wire.post("/select", {"context": CAT, "arms": arms}), 422)
    assert {"path": "arms", "message": "given more than once: 'ball'"} in refused["errors"]


def test_epsilon_greedy_gives_the_best_arm_all_but_what_it_explores_with(wire: Wire) -> None:
    """Epsilon 0.3 over three arms: 0.1 for each, and 0.7 more for the one that earned more."""
    greedy = {"kind": "epsilon_greedy", "epsilon": 0.3}
    wire.redefine(policies={**wire.definition()["policies"], "greedy": greedy})
    wire.reward(wire.select(policy="greedy", arms=["kibble"]), 1.0)
    wire.reward(wire.select(policy="greedy", arms=["ball"]), 0.0)
    decision = wire.select(policy="greedy")
    told = wire.get(f"/decisions/{decision['id']}").json()["candidates"]
    p = {each["arm"]: each["probability"] for each in told}
    assert p == pytest.approx({"kibble": 0.8, "mouse": 0.1, "ball": 0.1}, abs=1e-8)
    assert decision["propensity"] == p[decision["arm"]]


# -- deadlines ---------------------------------------------------------------------------------


def header(timeout_ms: str) -> dict[str, str]:
    return {"X-Envoy-Expected-Rq-Timeout-Ms": timeout_ms}


def test_a_request_whose_caller_has_stopped_waiting_is_not_begun(wire: Wire) -> None:
    question = {"context": CAT, "policy": "linucb"}
    reward = {"decision_id": wire.select(policy="linucb")["decision_id"], "reward": 1.0}
    for path, body in (("/select", question), ("/reward", reward)):
        for asked, sent in ((path, body), (f"{path}/batch", {"requests": [body]})):
            problem = expect_problem(wire.post(asked, sent, headers=header("0")), 504)
            assert problem["type"].endswith("/overdue")
    for key in (None, "k"):
        late = SelectRequest(CAT, policy="linucb"), Envelope(key, deadline=0.0)
        with pytest.raises(Overdue):
            wire.run(wire.services.selector.select(*late))
    assert (wire.policy("linucb")["decisions"], wire.rewards()) == (1, 0)
    assert wire.post("/reward", reward, headers=header("60000")).status_code == 200


@pytest.mark.parametrize("timeout_ms", ["60000", "soon", "", "-1", "9" * 30])
def test_a_request_in_time_or_without_a_deadline_is_answered(wire: Wire, timeout_ms: str) -> None:
    answer = wire.post("/select", {"context": CAT}, headers=header(timeout_ms))
    assert answer.status_code == 200
