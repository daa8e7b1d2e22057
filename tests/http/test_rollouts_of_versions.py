"""Versions that take over the traffic of their policy in stages (`training.gate = "rollout"`)."""

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from service.analysis.evaluate import evaluate
from service.analysis.request import EvaluationRequest
from service.log.stores.base import Append, MarkConflict
from service.log.stores.memory import MemoryStore
from service.log.upkeep import gate_mark
from service.offline.audit import Audit
from service.state.events import VersionActivated, encode_event
from tests.http.test_versions import NET, REPORT, artifact, end_gate, hand_over
from tests.support.clock import VirtualClock
from tests.support.service import SECRET, Json, Wire, expect_problem, serving

LOOK_S = 31.0
SETTINGS: Json = {"expiry_seconds": 1.0, "token_keys": [SECRET]}
SHOP: Json = {
    "policies": {
        "net": NET | {"training": {"first": 4, "gate": "rollout"}},
        "other": {"kind": "random"},
    },
    "features": {
        "context": {"persona": {"type": "categorical", "values": ["cat", "dog"]}},
        "arm": {"price": {"type": "numeric"}},
    },
    "arms": {"a": {"price": 1.0}, "b": {"price": 2.0}},
    "reward": {"range": [0, 1], "wait_seconds": 60},
    "rollout": {"stages": [0.2, 0.5, 1.0], "margin": 0.8, "stage_hours": 0.25},
}


@pytest.fixture
def shop(store: MemoryStore, clock: VirtualClock) -> Iterator[Wire]:
    """A shop whose policy `net` has a version that has passed its gate."""
    with serving(store, clock=clock, **SETTINGS) as wire:
        answer = wire.put("/experiments/shop?replace=true", SHOP)
        assert answer.status_code == 200, answer.text
        passed(wire)
        yield wire


def passed(wire: Wire) -> None:
    """Hand a version over, and let it pass its gate."""
    wire.teach(4, "net")
    assert hand_over(wire, artifact(wire, training=REPORT)).status_code == 202
    sums = wire.services.log.replicas.states["shop"].learners["net"].challenger
    assert sums is not None
    while sums.seen.outcome is None:
        sums.seen.add(0.75, 0.25)
    wire.teach(1, "net")


class Visitors:
    """Visitors whose clicks depend on the version alone."""

    def __init__(self, wire: Wire, **rates: float) -> None:
        self.wire, self.rates, self.rng = wire, rates, Random(5)
        self.number = 0

    def visit(self, count: int, **asks: Any) -> list[str]:
        """Decide for new visitors, one in five seconds; the `policy/version` that decided each."""
        found = []
        for _ in range(count):
            self.number += 1
            decision = self.wire.select(unit=f"visitor {self.number}", **asks)
            found.append(str(decision["model_version"]).partition("@")[0])
            if self.rng.random() < self.rates.get(found[-1].replace("/", "_"), 0.5):
                self.wire.reward(decision, 1.0)
            self.wire.sleep(5.0)
        return found


def status(wire: Wire) -> Json:
    answer = wire.get("/experiments/shop/rollouts/net")
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def version(wire: Wire) -> Json:
    [found] = wire.get("/experiments/shop/policies/net/versions").json()["versions"]
    told: Json = found
    return told


def audited(wire: Wire, store: MemoryStore) -> None:
    audit = wire.run(Audit(store, "shop").run())
    assert audit.decisions > 0
    assert audit.clean, audit


def test_a_version_that_passed_its_gate_takes_over_stage_by_stage(
    shop: Wire, store: MemoryStore
) -> None:
    assert (version(shop)["state"], version(shop)["share"]) == ("challenger", 0.0)
    shop.sleep(LOOK_S)
    begun = status(shop)
    assert (begun["version"], begun["share"], begun["state"]) == (1, 0.2, "running")
    assert version(shop)["share"] == 0.2
    assert {each["policy"] for each in (begun, status(shop))} == {begun["baseline"]} == {"net"}
    visitors, seen, made = Visitors(shop, net_0=0.5, net_1=0.6), [0], []
    while (now := status(shop))["state"] == "running":
        if now["stage"] != seen[-1]:
            seen.append(now["stage"])
        made += visitors.visit(60)
        assert visitors.number < 3_000
    assert (now["state"], seen) == ("finished", [0, 1])
    assert "'net/1' earned" in now["sentence"]
    assert {*made} == {"net/0", "net/1", "other/0"}
    assert shop.policy("net")["version"] == 1
    serves = version(shop)
    assert (serves["state"], serves["share"]) == ("serving", 1.0)
    assert serves["reason"] == now["sentence"]
    assert serves["settled"] >= now["last"]["own"] > 50
    assert {*visitors.visit(20)} == {"net/1", "other/0"}
    listed = shop.get("/experiments/shop/changes").json()["changes"]
    assert listed[2]["sentence"].startswith(
        "Forage began to roll out 'net/1' in place of 'net': 'Version 1 is rolled out: over "
    )
    audited(shop, store)


def test_a_worse_version_goes_and_the_next_one_may_come(shop: Wire, store: MemoryStore) -> None:
    shop.sleep(LOOK_S)
    visitors = Visitors(shop, net_0=0.9, net_1=0.0)
    while (now := status(shop))["state"] == "running":
        visitors.visit(20)
        assert visitors.number < 1_500
    assert now["state"] == "rolled_back"
    assert "'net' has its traffic back" in now["sentence"]
    assert (shop.policy("net")["version"], shop.policy("net")["staged"]) == (0, None)
    rejected = version(shop)
    assert (rejected["state"], rejected["share"]) == ("rejected", 0.0)
    assert rejected["reason"] == now["sentence"]
    assert "net/1" not in visitors.visit(20)
    audited(shop, store)
    hand_over(shop, artifact(shop, number=2, training=REPORT))
    assert shop.policy("net")["staged"] == 2


def test_a_request_that_names_the_policy_is_divided_as_the_others_are(shop: Wire) -> None:
    shop.sleep(LOOK_S)
    made = Visitors(shop).visit(60, policy="net")
    assert {*made} == {"net/0", "net/1"}
    shop.sleep(120)
    figures = status(shop)["figures"]
    assert (figures["own"], figures["baseline"]) == (made.count("net/1"), made.count("net/0"))


def test_estimates_know_what_a_version_decided(shop: Wire, store: MemoryStore) -> None:
    """The chance of an arm is over the draws of policies and of versions, and sums to 1; `other`
    chooses between an arm of which one in four is clicked and one of which three are."""
    shop.sleep(LOOK_S)
    rng = Random(3)
    for number in range(300):
        decision = shop.select(unit=f"visitor {number}")
        if rng.random() < (0.25 if decision["arm"] == "a" else 0.75):
            shop.reward(decision, 1.0)
        shop.sleep(1.0)
    shop.sleep(120)
    request = EvaluationRequest("shop", policies=["other"], confidence=0.999)
    [other] = shop.run(evaluate(store, request)).policies
    for each in other.estimates.values():
        low, high = each.interval
        assert low <= 0.5 <= high
    state = shop.services.log.replicas.states["shop"]
    chances = {each.label: chance for each, chance in state.deciders.items()}
    assert chances == pytest.approx({"net/0": 0.4, "net/1": 0.1, "other/0": 0.5})


def test_people_take_its_steps_and_what_it_compares_stays(shop: Wire) -> None:
    shop.sleep(LOOK_S)
    changed = {**SHOP, "policies": {**SHOP["policies"], "net": NET}}
    refused = expect_problem(shop.put("/experiments/shop", changed), 409)
    assert refused["detail"].startswith("a rollout of 'net/1' in place of 'net' is under way")
    again = shop.put("/experiments/shop", SHOP)
    assert again.status_code == 200, again.text
    share = shop.put("/experiments/shop/policies/net/share", {"share": 0.5})
    assert share.status_code == 200, share.text
    step = shop.post("/experiments/shop/rollouts/net/advance", {"reason": "seen enough"})
    assert (step.json()["share"], step.json()["version"]) == (0.5, 1)
    step = shop.post("/experiments/shop/rollouts/net/back", {})
    assert (step.json()["state"], version(shop)["state"]) == ("rolled_back", "rejected")


def test_a_restart_goes_on_with_the_rollout(store: MemoryStore, clock: VirtualClock) -> None:
    with serving(store, clock=clock, **SETTINGS) as wire:
        assert wire.put("/experiments/shop?replace=true", SHOP).status_code == 200
        passed(wire)
        wire.sleep(LOOK_S)
        before = Visitors(wire).visit(40)
    with serving(store, clock=clock, **SETTINGS) as wire:
        assert (status(wire)["state"], status(wire)["version"]) == ("running", 1)
        assert Visitors(wire).visit(40) == before
        audited(wire, store)


def test_a_policy_without_traffic_takes_a_version_that_passed_its_gate(
    store: MemoryStore, clock: VirtualClock
) -> None:
    with serving(store, clock=clock, **SETTINGS) as wire:
        quiet = {**SHOP["policies"]["net"], "share": 0.0}
        wire.put(
            "/experiments/shop?replace=true",
            {**SHOP, "policies": {**SHOP["policies"], "net": quiet}},
        )
        wire.teach(4, "net")
        assert hand_over(wire, artifact(wire, training=REPORT)).status_code == 202
        end_gate(wire, 1.0)
        assert wire.policy("net")["version"] == 1
        assert wire.get("/experiments/shop/rollouts").json()["rollouts"] == []


def test_a_gate_ends_once_by_a_rollout_or_by_serving(
    store: MemoryStore, clock: VirtualClock
) -> None:
    """Another process, to which a definition without rollouts is the latest, lets it serve."""
    with serving(store, clock=clock, **SETTINGS) as wire:
        assert wire.put("/experiments/shop?replace=true", SHOP).status_code == 200
        passed(wire)
        state = wire.services.log.replicas.states["shop"]
        born = state.learners["net"].born
        serves = VersionActivated(at=0.0, policy="net", born=born, version=1)
        entry = Append("shop", encode_event(serves), {gate_mark("net", born, 1): ""})
        wire.sleep(LOOK_S)
        [outcome] = wire.run(store.commit([entry]))
        assert isinstance(outcome, MarkConflict)
        assert status(wire)["state"] == "running"


def test_a_rollout_of_versions_needs_a_default_reward(shop: Wire) -> None:
    waits = {**SHOP, "reward": {**SHOP["reward"], "default": None}}
    problem = expect_problem(shop.put("/experiments/other", waits), 422)
    [fault] = problem["errors"]
    assert fault["path"] == "policies.net.training.gate"
    assert "reward.default" in fault["message"]


def test_a_version_that_cannot_decide_is_taken_back_before_any_reward(shop: Wire) -> None:
    """Its decisions, which the fallback makes, are told from those of the version that serves."""
    shop.sleep(LOOK_S)
    learner = shop.services.log.replicas.states["shop"].learners["net"]
    assert learner.challenger is not None
    head = learner.challenger.version.head
    assert head is not None
    head.restore({name: np.full_like(array, np.nan) for name, array in head.arrays().items()})
    for number in range(60):
        shop.select(unit=f"visitor {number}", policy="net")
    shop.sleep(LOOK_S)
    now = status(shop)
    assert now["state"] == "rolled_back"
    assert now["last"]["metric"] == "share of decisions by the fallback"
    assert now["last"]["sentence"].startswith("'net/1' let the fallback decide")
    assert now["sentence"].endswith(now["last"]["sentence"])
    assert now["last"]["own"] == 0
    assert version(shop)["state"] == "rejected"
