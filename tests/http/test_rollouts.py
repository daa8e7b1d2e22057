"""Rollouts over the wire: their start, the steps that they take by themselves and that people take,
and what they say meanwhile."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec import structs

from service.analysis.rollouts import RolloutLook, RolloutLooks
from service.log.stores.memory import MemoryStore
from service.state.fold import State
from service.state.rollout import NO_READING, RolloutPlan
from tests.support.clock import VirtualClock
from tests.support.service import SECRET, Json, Wire, expect_problem, serving
from tests.support.stores import Disk

LOOK_S = 31.0
PLAN = {"policy": "new", "baseline": "old", "stages": [0.2, 0.5, 1.0], "margin": 0.5}


def two_policies(**more: Any) -> Json:
    return {
        "policies": {
            "old": {"kind": "random"},
            "new": {"kind": "random", "share": 0.0},
            "other": {"kind": "random"},
        },
        "arms": {"a": {}, "b": {}},
        "reward": {"range": [0, 1], "wait_seconds": 60},
        **more,
    }


@pytest.fixture
def shop(store: MemoryStore, clock: VirtualClock) -> Iterator[Wire]:
    """Policies that only their names tell apart; default rewards settle each second."""
    with serving(store, clock=clock, expiry_seconds=1.0, token_keys=[SECRET]) as wire:
        assert wire.put("/experiments/shop?replace=true", two_policies()).status_code == 200
        yield wire


class Visitors:
    """Visitors of the shop, whose clicks depend on the policy alone."""

    def __init__(self, wire: Wire, **rates: float) -> None:
        self.wire, self.rates, self.rng = wire, rates, Random(5)
        self.number = 0
        self.policies = dict[str, str]()

    def visit(self, count: int, every: float = 5.0) -> None:
        """Decide for new visitors, one in so many seconds, and reward at once or never."""
        for _ in range(count):
            self.number += 1
            unit = f"visitor {self.number}"
            decision = self.wire.select(context={}, unit=unit)
            self.policies[unit] = decision["policy"]
            if self.rng.random() < self.rates.get(decision["policy"], 0.5):
                self.wire.reward(decision, 1.0)
            self.wire.sleep(every)


def start(wire: Wire, **more: Any) -> Json:
    answer = wire.post("/experiments/shop/rollouts", {**PLAN, **more})
    assert answer.status_code == 201, answer.text
    body: Json = answer.json()
    return body


def status(wire: Wire) -> Json:
    answer = wire.get("/experiments/shop/rollouts/new")
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def shares(wire: Wire) -> dict[str, float]:
    return {name: each["share"] for name, each in wire.definition()["policies"].items()}


def test_an_equal_challenger_takes_over_stage_by_stage(shop: Wire) -> None:
    begun = start(shop, stage_hours=0.5, reason="cheaper to run")
    assert (begun["stage"], begun["share"], begun["state"]) == (0, 0.2, "running")
    assert shares(shop) == {"old": 0.8, "new": 0.2, "other": 1.0}
    visitors, seen = Visitors(shop, old=0.5, new=0.5), [0]
    while (now := status(shop))["state"] == "running":
        if now["stage"] != seen[-1]:
            seen.append(now["stage"])
        visitors.visit(60)
        assert visitors.number < 6_000
    assert seen == [0, 1]
    assert now["state"] == "finished"
    assert now["last"]["kind"] == "finish"
    assert now["last"]["metric"] == "lower bound of the reward above the margin"
    assert now["last"]["value"] > now["last"]["bound"] == 0
    assert "a loss beyond the margin of 50 percent is ruled out" in now["sentence"]
    assert shares(shop) == {"old": 0.0, "new": 1.0, "other": 1.0}
    listed = shop.get("/experiments/shop/changes").json()["changes"]
    assert [each["kind"] for each in listed[:3]] == [
        "rollout_stepped", "rollout_stepped", "rollout_started",
    ]  # fmt: skip
    assert listed[0]["sentence"].startswith("Forage finished the rollout of 'new': 'new' earned")
    assert listed[2]["sentence"].endswith("in place of 'old': 'cheaper to run'")


def test_a_broken_challenger_is_rolled_back_at_once(shop: Wire) -> None:
    start(shop)
    visitors = Visitors(shop, old=0.9, new=0.0)
    while (now := status(shop))["state"] == "running":
        visitors.visit(20)
        assert visitors.number < 1_500
    assert now["state"] == "rolled_back"
    assert now["last"]["own"] < 60
    assert now["share"] == 0
    assert shares(shop) == {"old": 1.0, "new": 0.0, "other": 1.0}
    assert "has its traffic back" in now["last"]["sentence"]


def test_people_hold_resume_advance_and_take_back(shop: Wire) -> None:
    start(shop)
    for step, state, stage, share in (
        ("hold", "held", 0, 0.2),
        ("resume", "running", 0, 0.2),
        ("advance", "running", 1, 0.5),
        ("hold", "held", 1, 0.5),
        ("back", "rolled_back", 1, 0.0),
    ):
        answer = shop.post(f"/experiments/shop/rollouts/new/{step}", {"reason": "to see"})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["state"], body["stage"], body["share"]) == (state, stage, share)
        assert answer.headers["etag"] == f'"{shop.get("/experiments/shop").json()["revision"]}"'
        assert shares(shop)["new"] == share
        assert "There is no data" in body["last"]["sentence"]
    refused = shop.post("/experiments/shop/rollouts/new/advance", {})
    assert "is rolled back" in expect_problem(refused, 409)["detail"]
    again = start(shop)
    assert (again["state"], again["last"]) == ("running", None)


def test_a_person_confirms_each_stage_where_that_is_asked_for(shop: Wire) -> None:
    start(shop, ask=True, stage_hours=0)
    visitors = Visitors(shop, old=0.5, new=0.6)
    while status(shop)["state"] == "running":
        visitors.visit(40)
        assert visitors.number < 4_000
    now = status(shop)
    assert (now["state"], now["stage"]) == ("held", 0)
    assert "once a person confirms it" in now["last"]["sentence"]
    shop.sleep(LOOK_S)
    assert status(shop)["last"] == now["last"]
    went_on = shop.post("/experiments/shop/rollouts/new/advance", {}).json()
    assert (went_on["state"], went_on["stage"]) == ("running", 1)
    assert "earned" in went_on["last"]["sentence"]


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"policy": "newer"}, 404, "no policy 'newer'"),
        ({"baseline": "older"}, 404, "no policy 'older'"),
        ({"policy": "other"}, 409, "set it to 0 first"),
        ({"baseline": "unused"}, 409, "has no traffic that could be taken over"),
        ({"baseline": "new"}, 422, "is the baseline"),
        ({"stages": [0.5, 0.2, 1]}, 422, "must ascend from above 0 to 1"),
        ({"stages": [0.05, 0.5]}, 422, "must ascend from above 0 to 1"),
        ({"stages": [1]}, 422, "at least 2"),
        ({"margin": 0}, 422, "greater than 0"),
        ({"margin": 10}, 422, "less than 1"),
        ({"stage": [0.5, 1]}, 422, "stage"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(shop: Wire, body: Json, code: int, says: str) -> None:
    unused = {"policies": {**two_policies()["policies"], "unused": {"kind": "random", "share": 0}}}
    shop.redefine(**unused)
    for path in ("rollouts", "forecast"):
        answer = shop.post(f"/experiments/shop/{path}", {**PLAN, **body})
        problem = expect_problem(answer, code)
        assert says in problem["detail"] + " ".join(e["message"] for e in problem["errors"])
    assert shop.get("/experiments/shop/rollouts").json()["rollouts"] == []


def test_a_rollout_without_a_default_reward_is_refused(shop: Wire) -> None:
    shop.redefine(reward={"range": [0, 1], "default": None})
    answer = shop.post("/experiments/shop/rollouts", PLAN)
    assert "needs a default reward" in expect_problem(answer, 422)["detail"]


def test_no_policy_is_in_two_rollouts(shop: Wire) -> None:
    start(shop)
    policies = {**shop.definition()["policies"], "third": {"kind": "random", "share": 0.0}}
    shop.redefine(policies=policies)
    for policy, baseline in (("third", "old"), ("third", "new")):
        body = {**PLAN, "policy": policy, "baseline": baseline}
        answer = shop.post("/experiments/shop/rollouts", body)
        assert "a rollout of 'new' in place of 'old'" in expect_problem(answer, 409)["detail"]
    body = {**PLAN, "policy": "third", "baseline": "other"}
    assert shop.post("/experiments/shop/rollouts", body).status_code == 201


@pytest.mark.parametrize(
    "change",
    [
        {"policies": {"old": {"kind": "linucb"}}},
        {"policies": {"new": {"kind": "random", "share": 0.0, "epsilon": 0.1}}},
        {"reward": {"range": [0, 2], "wait_seconds": 60}},
        {"features": {"context": {"age": {"type": "numeric", "scale": 10.0}}}},
    ],
)
def test_what_a_rollout_compares_does_not_change_under_it(shop: Wire, change: Json) -> None:
    start(shop)
    policies = {**shop.definition()["policies"], **change.get("policies", {})}
    definition = {**shop.definition(), **change, "policies": policies}
    answer = shop.put("/experiments/shop?replace=true", definition)
    assert "end the rollout first" in expect_problem(answer, 409)["detail"]
    for path, body in (("old/share", {"share": 0.5}), ("new/reset", None)):
        method = "PUT" if body else "POST"
        answer = shop.request(method, f"/experiments/shop/policies/{path}", json=body)
        assert "end the rollout first" in expect_problem(answer, 409)["detail"]
    without = {**shop.definition(), "policies": {"other": {"kind": "random"}}}
    expect_problem(shop.put("/experiments/shop?replace=true", without), 409)


def test_a_file_and_a_policy_without_a_change_change_nothing(shop: Wire) -> None:
    """However they divide what the two have: as the file does, or as the rollout does now."""
    start(shop)
    divided = shop.definition()
    for definition in (two_policies(), divided):
        plan = shop.put("/experiments/shop?dry_run=true", definition).json()
        assert not any(plan["changes"].values()), plan
    for share in (0.0, 0.2):
        body = {"kind": "random", "share": share}
        for policy, code in (("new", 200), ("old", 409)):
            answer = shop.put(f"/experiments/shop/policies/{policy}", body)
            assert answer.status_code == code, answer.text
    assert shop.put("/experiments/shop/policies/old", {"kind": "random"}).status_code == 200
    assert shares(shop) == {"old": 0.8, "new": 0.2, "other": 1.0}


def test_a_rollout_keeps_traffic(shop: Wire) -> None:
    start(shop)
    policies = {**two_policies()["policies"], "old": {"kind": "random", "share": 0.0}}
    refused = shop.put("/experiments/shop", two_policies(policies=policies))
    assert "that there is any traffic for it would change" in expect_problem(refused, 409)["detail"]


def test_no_stage_is_passed_without_a_decision_of_it(shop: Wire) -> None:
    start(shop, stage_hours=0.0)
    visitors = Visitors(shop, old=0.5, new=0.5)
    while stage_of(shop) == 0:
        visitors.visit(1)
        assert visitors.number < 4_000
    shop.sleep(600)
    now = status(shop)
    assert (now["stage"], now["state"], now["figures"]["newest"]) == (1, "running", None)
    assert "There is no data of this stage yet" in now["sentence"]


def stage_of(wire: Wire) -> int:
    return wire.services.log.replicas.states["shop"].traffic.rollouts["new"].stage


def test_a_step_of_a_person_says_who_took_it_and_why(shop: Wire) -> None:
    start(shop)
    Visitors(shop, old=0.5, new=0.5).visit(60)
    shop.post("/experiments/shop/rollouts/new/hold", {"reason": "a sale"})
    held = status(shop)
    told = held["last"]["by"], held["last"]["reason"], held["last"]["metric"], held["last"]["value"]
    assert told == ("", "a sale", "decision of a person", None)
    assert "somebody, " in held["sentence"]
    assert "'a sale'" in held["sentence"]


def test_the_same_file_applied_again_leaves_a_rollout_as_it_is(shop: Wire) -> None:
    start(shop)
    file = two_policies(arms={"a": {}, "b": {}, "c": {}})
    assert shop.put("/experiments/shop", file).status_code == 200
    assert shares(shop) == {"old": 0.8, "new": 0.2, "other": 1.0}
    assert status(shop)["state"] == "running"


def test_a_plan_forecasts_each_stage_and_starts_nothing(shop: Wire) -> None:
    assert shop.post("/experiments/shop/forecast", PLAN).json()["forecast"] is None
    Visitors(shop, old=0.5).visit(400)
    shop.sleep(60)
    forecast = shop.post("/experiments/shop/forecast", PLAN).json()["forecast"]
    assert [stage["share"] for stage in forecast["stages"]] == [0.2, 0.5]
    first = forecast["stages"][0]
    median, late = first["advance_own"]
    assert 30 < median < late < 500
    assert first["advance_seconds"] == 24 * 3600
    assert 0 < first["stop_seconds"] < 24 * 3600
    assert not forecast["cannot_end"]
    rare = {**PLAN, "margin": 0.001}
    assert shop.post("/experiments/shop/forecast", rare).json()["forecast"]["cannot_end"]
    assert shop.get("/experiments/shop/rollouts").json()["rollouts"] == []


def test_a_challenger_learns_from_every_reward_until_its_rollout_ends(shop: Wire) -> None:
    policies = {
        "old": {"kind": "random"},
        "new": {"kind": "linucb", "features": ["age"], "share": 0.0},
    }
    features = {"context": {"age": {"type": "numeric", "scale": 10.0, "default": 0.0}}}
    shop.redefine(policies=policies, features=features)

    def teach() -> int:
        shop.reward(shop.select(context={}, policy="old"), 1.0)
        return shop.rewards("new")

    assert teach() == 0
    start(shop)
    assert teach() == 1
    shop.post("/experiments/shop/rollouts/new/hold", {})
    assert teach() == 2
    shop.post("/experiments/shop/rollouts/new/back", {})
    assert teach() == 2


def test_no_visitor_leaves_the_challenger_and_nobody_else_moves(
    shop: Wire, store: MemoryStore
) -> None:
    """Through all stages, a rollback, another attempt, a restart and the end."""
    units = [f"visitor {number}" for number in range(300)]

    def policies(wire: Wire = shop) -> dict[str, str]:
        return {unit: wire.select(context={}, unit=unit)["policy"] for unit in units}

    before = policies()
    start(shop)
    first = policies()
    assert {unit for unit in units if before[unit] == "other"} == {
        unit for unit in units if first[unit] == "other"
    }
    shop.post("/experiments/shop/rollouts/new/advance", {})
    second = policies()
    shop.post("/experiments/shop/rollouts/new/back", {})
    assert policies() == before
    start(shop)
    assert policies() == first
    shop.post("/experiments/shop/rollouts/new/advance", {})
    assert policies() == second
    with serving(store, clock=VirtualClock(), token_keys=[SECRET]) as restarted:
        assert policies(restarted) == second
    shop.post("/experiments/shop/rollouts/new/advance", {})
    last = policies()
    for earlier, later in ((before, first), (first, second), (second, last)):
        moved = {(earlier[unit], later[unit]) for unit in units if earlier[unit] != later[unit]}
        assert moved == {("old", "new")}
    assert "old" not in last.values()


def test_metrics_tell_the_stage_and_who_waits(shop: Wire) -> None:
    def told() -> tuple[float | None, float | None, float]:
        found, label = shop.metrics(), '{experiment="shop",policy="new"}'
        return (
            found.get(f"forage_rollout_stage{label}"),
            found.get(f"forage_rollout_waits{label}"),
            found['forage_rollout_rollbacks_total{experiment="shop"}'],
        )

    assert told() == (None, None, 0)
    start(shop, undecided_after_days=0.001)
    assert told() == (1, 0, 0)
    shop.post("/experiments/shop/rollouts/new/hold", {})
    shop.sleep(200)
    assert told() == (1, 0, 0)
    shop.post("/experiments/shop/rollouts/new/advance", {})
    shop.sleep(200)
    assert (status(shop)["state"], told()) == ("undecided", (2, 1, 0))
    shop.post("/experiments/shop/rollouts/new/back", {})
    assert told() == (0, 0, 1)


def test_a_step_that_cannot_be_logged_is_taken_once_the_log_is_back(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the service's log and no traceback at each look meanwhile."""
    disk = Disk()
    with serving(disk, clock=clock, expiry_seconds=1.0) as wire:
        assert wire.put("/experiments/shop?replace=true", two_policies()).status_code == 200
        start(wire, undecided_after_days=0.001)
        disk.full = True
        wire.sleep(5 * LOOK_S)
        lines = [each for each in caplog.records if "no step can be logged" in each.message]
        assert lines
        assert not any(each.exc_info for each in caplog.records)
        assert status(wire)["state"] == "running"
        disk.full = False
        wire.sleep(5 * LOOK_S)
        assert status(wire)["state"] == "undecided"


def test_what_was_read_of_one_attempt_does_not_judge_the_next(
    shop: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person takes a loser back and starts it again while the log is read."""
    start(shop)
    state, rollouts = shop.services.log.replicas.states["shop"], shop.services.rollouts
    [plan] = [structs.asdict(each) for each in state.traffic.rollouts.values()]
    loses = structs.replace(NO_READING, evidence=7.0)
    read = RolloutLook(plan["position"], loses, 0.0, 0.0, 0.0)

    restarted = list[bool]()

    async def look(_: State) -> RolloutLooks:
        if not restarted:
            restarted.append(True)
            await rollouts.step(state, "new", "back", "")
            again = RolloutPlan(policy="new", baseline="old", stages=(0.2, 1.0))
            await rollouts.start(state, again, "")
        return RolloutLooks({"new": read}, {}, (0.0, 1.0), None)

    monkeypatch.setattr(rollouts, "_look", look)
    rollouts._latest.clear()
    shop.run(rollouts.judge(state))
    assert state.traffic.rollouts["new"].state == "running"
    assert state.traffic.rollbacks == 1
