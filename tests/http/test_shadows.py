"""Shadows: added and removed while the service decides, and told what they would have earned."""

from pathlib import Path

import pytest

from service.analysis.policies import chosen_policies
from service.analysis.request import EvaluationRequest, Selection
from service.errors import Invalid
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


def test_a_dry_run_says_that_a_policy_and_a_shadow_do_not_share_a_head() -> None:
    with serving() as wire:
        define(wire, idea={"kind": "linucb"})
        for policies, reason in (
            ({"idea": SHADOW}, "a shadow learns from the log"),
            ({"idea": {"kind": "linucb"}}, "a shadow has no head"),
        ):
            body = {**shop(), "policies": {"main": MAIN, **policies}}
            told = wire.put(f"{EXPERIMENT}?dry_run=true", body).json()["restarted"]
            assert told["idea"].startswith(reason)
            assert wire.put(EXPERIMENT, body).json()["restarted"] == told


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
