"""Shadows: added and removed while the service decides, and told what they would have earned."""

from pathlib import Path

import pytest

from service.analysis.policies import chosen_policies
from service.analysis.request import EvaluationRequest, Selection
from service.errors import Invalid
from service.log.stores.memory import MemoryStore
from service.offline.audit import Audit
from tests.support.clock import run_virtual
from tests.support.evaluated import estimates
from tests.support.service import Json, Wire, expect_problem, paths, serving
from tests.unit.folding import shop

EXPERIMENT, PATH = "/experiments/shop", "/experiments/shop/shadows"
MAIN: Json = {"kind": "lints", "draws": 64, "epsilon": 0.5}
CAT: Json = {"pet": "cat"}
SHADOW: Json = {"kind": "linucb", "shadow": True}


def define(wire: Wire, **shadows: Json) -> None:
    body = {**shop(), "policies": {"main": MAIN, **shadows}}
    assert wire.put(EXPERIMENT, body).status_code == 200


def visits(wire: Wire, count: int) -> None:
    for _ in range(count):
        decision = wire.select(context=CAT)
        wire.reward(decision, float(decision["arm"].startswith("toy")))


@pytest.mark.process
def test_a_shadow_is_valued_since_it_is_there(tmp_path: Path) -> None:
    """It has learned from all that came before, too."""
    with serving(store=f"sqlite:///{tmp_path}/forage.db") as wire:
        define(wire)
        visits(wire, 40)
        define(wire, first=SHADOW)
        visits(wire, 100)
        define(wire, first=SHADOW, second={**SHADOW, "epsilon": 1.0})
        visits(wire, 10)
        found = wire.get(PATH).json()
        by_name = {each["policy"]: each for each in found["policies"]}
        assert (found["shadows"], found["decisions"]) == (True, 110)
        assert (by_name["first"]["decisions"], by_name["second"]["decisions"]) == (110, 10)
        first = by_name["first"]
        assert first["learned_from"] >= 149
        assert first["refused"] is None
        wide, fixed = first["anytime_interval"], first["estimates"]["dr"]["interval"]
        assert 0 <= wide[0] <= fixed[0] < fixed[1] <= wide[1] <= 1
        assert first["uplift_anytime"][0] < first["uplift"]
        assert "valid at any time" in found["sentence"]
        assert "at least 50 are needed" in by_name["second"]["refused"]
        evaluated = estimates(wire, {"policies": ["main", "first"]})
        named = {each["policy"]: each["never_ran"] for each in evaluated["policies"]}
        assert named == {"main": False, "first": True}
        define(wire)
        empty = wire.get(PATH).json()
        assert (empty["policies"], empty["decisions"]) == ([], 0)
        assert "No policy is a shadow" in empty["sentence"]


@pytest.mark.process
def test_a_shadow_of_a_newer_feature_takes_nothing_from_another(tmp_path: Path) -> None:
    """What another has learned, and what it would have earned."""
    newer = shop()
    newer["features"]["context"]["hour"] = {"type": "numeric", "scale": 12.0, "default": 0.0}

    def put(**shadows: Json) -> None:
        body = {**newer, "policies": {"main": MAIN, "first": SHADOW, **shadows}}
        assert wire.put(EXPERIMENT, body).status_code == 200

    def first() -> Json:
        return next(e for e in wire.get(PATH).json()["policies"] if e["policy"] == "first")

    with serving(store=f"sqlite:///{tmp_path}/forage.db") as wire:
        define(wire)
        visits(wire, 60)
        put()
        visits(wire, 80)
        before = first()
        put(second={**SHADOW, "features": ["intercept", "hour", "kind"]})
        assert first() == before
        assert before["learned_from"] >= 139


def test_shadows_are_evaluated_on_all_of_their_decisions() -> None:
    with serving() as wire:
        define(wire, first=SHADOW)
        state = wire.services.log.replicas.states["shop"]
        for request in (
            EvaluationRequest("shop", shadows=True, freeze=True),
            EvaluationRequest("shop", shadows=True, policies=["main"]),
            EvaluationRequest("shop", shadows=True, definitions={"idea": {"kind": "linucb"}}),
            EvaluationRequest("shop", shadows=True, selection=Selection(newest=10)),
        ):
            with pytest.raises(Invalid, match="leave out policies, definitions"):
                chosen_policies(state, request)


def test_a_shadow_decides_nothing() -> None:
    with serving() as wire:
        define(wire, idea=SHADOW)
        listed = wire.get(f"{EXPERIMENT}/policies").json()["policies"]
        assert [each["name"] for each in listed] == ["main"]
        problem = expect_problem(wire.post("/select", {"policy": "idea"}), 404)
        assert "is a shadow" in problem["detail"]
        expect_problem(wire.put(f"{EXPERIMENT}/policies/idea/share", {"share": 0.5}), 404)
        assert wire.get(EXPERIMENT).json()["definition"]["policies"]["idea"]["shadow"] is True


def test_a_shadow_that_becomes_live_goes_on_with_what_it_learned(store: MemoryStore) -> None:
    """By its own route, with a restart in between; and so does a live one that becomes a shadow."""
    idea = f"{EXPERIMENT}/policies/idea"
    with serving(store) as wire:
        define(wire, idea=SHADOW)
        visits(wire, 12)
        before = wire.policy("idea")
        assert (before["rewards"], before["share"], before["decisions"]) == (12, 0, 0)
    with serving(store) as wire:
        assert wire.policy("idea")["head"] == before["head"]
        live = {"kind": "linucb", "share": 0.0}
        plan = wire.put(f"{idea}?dry_run=true", live).json()
        assert plan["restarted"] == {}
        assert wire.put(idea, live).json()["restarted"] == {}
        assert wire.policy("idea")["head"] == before["head"]
        visits(wire, 3)
        assert wire.policy("idea")["head"] == before["head"]
        wire.reward(wire.select(policy="idea", context=CAT), 1.0)
        taught = wire.policy("idea")
        assert taught["rewards"] == 13
        assert wire.put(idea, SHADOW).json()["restarted"] == {}
        assert wire.policy("idea")["head"] == taught["head"]
    report = run_virtual(Audit(store, "shop").run())
    assert (report.decisions, report.total) == (16, 0)


def test_a_dry_run_says_what_is_lost_where_a_shadow_is_not_folded() -> None:
    dark = {**SHADOW, "fold": False}
    with serving() as wire:
        define(wire, idea=SHADOW)
        for policies, reason in (
            ({"idea": dark}, "a shadow with fold = false has no head, and it loses"),
            ({"idea": {"kind": "linucb"}}, "a shadow with fold = false has no head that"),
        ):
            body = {**shop(), "policies": {"main": MAIN, **policies}}
            told = wire.put(f"{EXPERIMENT}?dry_run=true", body).json()["restarted"]
            assert told["idea"].startswith(reason)
            assert wire.put(EXPERIMENT, body).json()["restarted"] == told


def test_a_shadow_is_looked_at_trained_and_reset_by_name() -> None:
    with serving() as wire:
        define(wire, idea={**SHADOW, "kind": "neural_linear_ts", "training": {"first": 4}})
        visits(wire, 5)
        assert wire.policy("idea")["training_due"]
        assert wire.get(f"{EXPERIMENT}/status").json()["policies"] == ["main"]
        assert wire.get(f"{EXPERIMENT}/policies/idea/versions").json() == {"versions": []}
        reset = wire.post(f"{EXPERIMENT}/policies/idea/reset")
        assert (reset.status_code, reset.json()["rewards"]) == (200, 0)
        expect_problem(wire.post(f"{EXPERIMENT}/policies/idea/versions", content=b"none"), 422)
        define(wire, idea={**SHADOW, "fold": False})
        problem = expect_problem(wire.get(f"{EXPERIMENT}/policies/idea"), 404)
        assert "is a shadow" in problem["detail"]


def test_a_shadow_starts_to_decide_once_it_has_a_share() -> None:
    with serving() as wire:
        define(wire, idea=SHADOW)
        define(wire, idea={**SHADOW, "shadow": False, "share": 1.0})
        policies = {wire.select(context=CAT, unit=f"unit-{n}")["policy"] for n in range(20)}
        assert policies == {"main", "idea"}


@pytest.mark.parametrize(
    ("definition", "path"),
    [
        ({"policies": {"main": MAIN, "idea": {**SHADOW, "share": 0.1}}}, "policies.idea"),
        ({"policies": {"main": MAIN, "idea": SHADOW}, "control": "idea"}, "control"),
    ],
)
def test_a_shadow_has_no_share_and_is_no_control(definition: Json, path: str) -> None:
    with serving() as wire:
        problem = expect_problem(wire.put(EXPERIMENT, {**shop(), **definition}), 422)
        assert "a shadow" in problem["detail"]
        assert paths(problem) == [path]
