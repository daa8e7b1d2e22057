"""A loss budget over the wire: what a learner gets by what it earns, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.log.stores.memory import MemoryStore
from service.state.changelog import NOTABLE_KINDS
from service.state.events import BudgetMoved, decode_event
from tests.http.test_rollouts import LOOK_S, Visitors
from tests.support.clock import VirtualClock
from tests.support.service import SECRET, Json, Wire, expect_problem, serving

NEVER_BELOW = {"policy": "main", "by": 0.2}


def two_policies(**more: Any) -> Json:
    return {
        "policies": {"main": {"kind": "random"}, "new": {"kind": "random", "share": 9.0}},
        "arms": {"a": {}, "b": {}},
        "reward": {"range": [0, 1], "wait_seconds": 60},
        "never_below": NEVER_BELOW,
        **more,
    }


@pytest.fixture
def shop(store: MemoryStore, clock: VirtualClock) -> Iterator[Wire]:
    """Policies that only their names tell apart; default rewards settle each second."""
    with serving(store, clock=clock, expiry_seconds=1.0, token_keys=[SECRET]) as wire:
        assert wire.put("/experiments/shop?replace=true", two_policies()).status_code == 200
        yield wire


def budget(wire: Wire) -> Json:
    answer = wire.get("/experiments/shop/budget")
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def test_a_good_learner_gets_more_of_the_traffic(shop: Wire, store: MemoryStore) -> None:
    begins, etag = budget(shop), shop.get("/experiments/shop").headers["etag"]
    assert (begins["share"], begins["ratio"], begins["moves"]) == (0.2, 0, 0)
    assert begins["value"] is None
    visitors = Visitors(shop, main=0.3, new=0.8)
    while (now := budget(shop))["share"] < 0.8:
        visitors.visit(100)
        assert visitors.number < 4_000
    assert now["ratio"] > 0.7
    assert now["moves"] >= 1
    assert "'main' 0." in now["sentence"]
    assert now["sentence"].endswith("The others may have 80 percent of the traffic.")
    found = shop.metrics()
    assert found['forage_budget_learner_share{experiment="shop"}'] == 0.8
    assert found['forage_policy_share{experiment="shop",policy="new"}'] == pytest.approx(0.8)
    shown = shop.get("/experiments/shop")
    assert shown.headers["etag"] == etag
    definition = shown.json()["definition"]
    assert definition["never_below"] == NEVER_BELOW
    assert {name: each["share"] for name, each in definition["policies"].items()} == {
        "main": 1.0,
        "new": 9.0,
    }
    newest = shop.get("/experiments/shop/changes").json()["changes"][0]
    assert (newest["kind"], newest["by"], newest["revision"]) == ("budget_moved", "automatic", None)
    assert newest["sentence"].startswith("Forage moved the loss budget: The others earned 0.")
    assert newest["kind"] not in NOTABLE_KINDS
    with serving(store, clock=VirtualClock(), token_keys=[SECRET]) as restarted:
        assert budget(restarted)["share"] == 0.8


def test_a_bad_learner_keeps_the_least_share(shop: Wire) -> None:
    Visitors(shop, main=0.5, new=0.0).visit(800)
    shop.sleep(LOOK_S + 60)
    now = budget(shop)
    assert (now["share"], now["ratio"], now["moves"]) == (0.2, 0, 0)
    assert now["own"] == pytest.approx(160, abs=40)


def test_a_learner_that_begins_anew_gives_the_traffic_back(shop: Wire) -> None:
    visitors = Visitors(shop, main=0.3, new=0.8)
    while budget(shop)["share"] < 0.5:
        visitors.visit(100)
        assert visitors.number < 4_000
    shop.post("/experiments/shop/policies/new/reset")
    shop.sleep(LOOK_S)
    now = budget(shop)
    assert (now["share"], now["ratio"], now["own"]) == (0.2, 0, 0)


def test_there_is_none_unless_the_definition_says_so(shop: Wire) -> None:
    shop.redefine(never_below=None)
    problem = expect_problem(shop.get("/experiments/shop/budget"), 404)
    assert "no loss budget (never_below)" in problem["detail"]
    assert shop.get("/experiments/shop/rollouts").json() == {"rollouts": [], "budget": None}
    assert 'forage_budget_learner_share{experiment="shop"}' not in shop.metrics()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"never_below": {"policy": "mian", "by": 0.02}}, "no policy 'mian'"),
        ({"never_below": {"policy": "main", "by": 0.0}}, "greater than 0"),
        ({"never_below": {"policy": "main", "by": 0.6}}, "less than or equal to 0.5"),
        ({"never_below": {"policy": "main"}}, "by"),
        ({"reward": {"range": [0, 1], "default": None}}, "needs a default reward"),
        (
            {"policies": {"main": {"kind": "random", "share": 0.0}, "new": {"kind": "random"}}},
            "'main' needs a share above 0",
        ),
        (
            {"policies": {"main": {"kind": "linucb", "shadow": True}, "new": {"kind": "random"}}},
            "a shadow earns nothing",
        ),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(shop: Wire, change: Json, says: str) -> None:
    answer = shop.put("/experiments/shop?replace=true", two_policies(**change))
    problem = expect_problem(answer, 422)
    told = [f"{each['path']}: {each['message']}" for each in problem["errors"]]
    assert any(says in each for each in told), told


def test_its_policy_keeps_a_share_and_takes_no_part_in_a_rollout(shop: Wire) -> None:
    refused = shop.put("/experiments/shop/policies/main/share", {"share": 0.0})
    assert "never_below names 'main'" in expect_problem(refused, 422)["detail"]
    policies = {**two_policies()["policies"], "newer": {"kind": "random", "share": 0.0}}
    shop.redefine(policies=policies)
    body = {"policy": "newer", "baseline": "main"}
    for path in ("rollouts", "forecast"):
        refused = shop.post(f"/experiments/shop/{path}", body)
        assert "never_below names 'main'" in expect_problem(refused, 409)["detail"]
    begun = shop.post("/experiments/shop/rollouts", {**body, "baseline": "new"})
    assert begun.status_code == 201
    definition = {**two_policies(), "policies": policies}
    for policy in ("new", "newer"):
        changed = {**definition, "never_below": {"policy": policy, "by": 0.1}}
        changed["policies"] = {**policies, "newer": {"kind": "random", "share": 1.0}}
        refused = shop.put("/experiments/shop?replace=true", changed)
        assert "a rollout of 'newer' in place of 'new'" in expect_problem(refused, 409)["detail"]
    assert shop.put("/experiments/shop?replace=true", definition).status_code == 200


def test_the_list_of_rollouts_has_it(shop: Wire) -> None:
    assert shop.get("/experiments/shop/rollouts").json()["budget"] == budget(shop)


def test_of_two_processes_that_move_it_the_first_counts(shop: Wire, store: MemoryStore) -> None:
    def moves() -> int:
        records = shop.run(store.read("shop", 0, 10_000))
        return sum(isinstance(decode_event(each.payload), BudgetMoved) for each in records)

    with serving(store, clock=VirtualClock(), token_keys=[SECRET]) as late:
        Visitors(shop, main=0.3, new=0.9).visit(1_000)
        before = moves()
        assert before > 0
        late.run(late.services.rollouts.judge(late.services.log.replicas.states["shop"]))
        assert moves() == before
