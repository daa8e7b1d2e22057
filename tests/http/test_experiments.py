"""/experiments: define, change with If-Match, delete, define again."""

import tomllib
from typing import Any

import pytest

from tests.support.keys import Keys
from tests.support.service import SHOP, Json, Wire, expect_problem, paths, serving

CAT = {"persona": "cat"}
COINS = {
    "arms": {"heads": {}, "tails": {}},
    "policies": {"toss": {"kind": "random"}},
}


def put(wire: Wire, name: str, definition: Json, match: str | None = None) -> Any:
    headers = {} if match is None else {"If-Match": match}
    return wire.put(f"/experiments/{name}", definition, headers=headers)


def test_an_experiment_file_and_its_answer_say_the_same(wire: Wire) -> None:
    answer = wire.get("/experiments/shop")
    body = answer.json()
    assert answer.headers["etag"] == '"1"'
    assert (body["name"], body["revision"], body["schema_version"]) == ("shop", 1, 1)
    assert body["position"] == 1
    assert body["definition"]["policies"]["lints"]["draws"] == 64
    assert body["definition"]["arms"]["mouse"] == {"category": "toy", "brand": "squeak"}
    assert body["definition"]["reward"]["range"] == [0.0, 1.0]


def test_the_content_of_a_file_can_be_put_with_its_name(wire: Wire) -> None:
    content = {"name": "toys", **tomllib.loads(SHOP.read_text()), "arms": {}}
    problem = expect_problem(put(wire, "toys", content), 422)
    assert paths(problem) == ["name"]
    assert put(wire, "toys", {**content, "name": "toys"}).status_code == 201
    assert "name" not in wire.get("/experiments/toys").json()["definition"]


def test_a_new_experiment_is_created_listed_and_serves_at_once(wire: Wire) -> None:
    expect_problem(put(wire, "coins", COINS, '"1"'), 412)  # it has no revision yet
    expect_problem(wire.get("/experiments/coins"), 404)
    answer = put(wire, "coins", COINS)
    assert answer.status_code == 201
    assert answer.headers["etag"] == '"1"'
    added = ["arms.heads", "arms.tails", "policies.toss"]
    changes = {"added": added, "removed": [], "changed": {}}
    present = wire.get("/experiments/coins").json()
    assert answer.json() == {**present, "restarted": {}, "changes": changes}
    assert wire.select(experiment="coins", context={})["propensity"] == 0.5
    listed = {each["name"]: each for each in wire.get("/experiments").json()["experiments"]}
    assert listed["shop"]["policies"] == ["linucb", "lints", "named_only"]
    assert listed["coins"] == {
        "name": "coins", "revision": 1, "position": 1, "policies": ["toss"], "arms": 2
    }  # fmt: skip


# -- If-Match --------------------------------------------------------------------------------------


def test_if_match_changes_the_revision_that_it_names_and_no_other(wire: Wire) -> None:
    definition = wire.definition()
    wire.teach()
    answer = put(wire, "shop", definition, '"1"')
    assert answer.headers["etag"] == '"2"'
    assert answer.json()["definition"] == definition
    assert wire.policy("linucb")["head"]["effective_count"] == 1  # what was got can be put back
    expect_problem(put(wire, "shop", definition, '"1"'), 412)
    assert wire.get("/experiments/shop").json()["revision"] == 2
    assert put(wire, "shop", definition, "*").json()["revision"] == 3
    expect_problem(wire.delete("/experiments/shop", headers={"If-Match": '"2"'}), 412)
    assert wire.delete("/experiments/shop", headers={"If-Match": '"3"'}).status_code == 204


@pytest.mark.parametrize("match", ["latest", '"', "", "-1", '"1", "2"', 'W/"1"', "1" * 5_000, "²"])
def test_if_match_is_a_revision(wire: Wire, match: str) -> None:
    headers = {"If-Match": match.encode()}
    answer = wire.put("/experiments/shop", wire.definition(), headers=headers)
    assert paths(expect_problem(answer, 422)) == ["If-Match"]


# -- delete ----------------------------------------------------------------------------------------


def test_a_deleted_experiment_is_gone_and_can_be_defined_again(wire: Wire) -> None:
    definition, decision = wire.definition(), wire.select(policy="linucb")
    wire.teach()
    assert wire.delete("/experiments/shop").status_code == 204
    for path in ("/experiments/shop", "/experiments/shop/arms", f"/decisions/{decision['id']}"):
        expect_problem(wire.get(path), 404)
    expect_problem(wire.delete("/experiments/shop"), 404)
    for body, status in (({"experiment": "shop"}, 404), ({}, 422)):
        answer = wire.post("/select", {"context": CAT, **body})
        assert paths(expect_problem(answer, status)) == ["experiment"]
    wire.refuse(410, decision)

    again = put(wire, "shop", definition)
    assert again.status_code == 201
    assert again.json()["revision"] > 1
    wire.refuse(410, decision)
    assert wire.policy("linucb")["head"]["effective_count"] == 0
    wire.teach()


# -- several ---------------------------------------------------------------------------------------


def test_with_two_experiments_every_request_names_one(wire: Wire) -> None:
    put(wire, "coins", COINS)
    assert paths(expect_problem(wire.post("/select", {"context": CAT}), 422)) == ["experiment"]
    for path in ("/arms", "/arms/mouse", "/policies", "/policies/linucb"):
        assert paths(expect_problem(wire.get(path), 422)) == ["experiment"]
        assert wire.get(f"/experiments/shop{path}").status_code == 200
    decision = wire.select(experiment="coins", context={})
    assert wire.reward(decision, 1.0) == "accepted"
    assert wire.policy("toss", "coins")["rewards"] == 1

    wire.delete("/experiments/coins")
    assert wire.select()["experiment"] == "shop"
    assert wire.get("/arms").status_code == 200


# -- change ----------------------------------------------------------------------------------------


def taught(wire: Wire) -> Json:
    """An open decision, after a reward for another."""
    wire.teach()
    return wire.select(policy="linucb")


def test_other_features_keep_what_was_learned_of_columns_that_stay(wire: Wire) -> None:
    decision = taught(wire)
    features = wire.definition()["features"]
    features["context"]["age"]["scale"] = 20.0
    answer = wire.redefine(features=features)
    assert (answer["revision"], answer["schema_version"]) == (2, 2)
    assert wire.policy("linucb")["head"]["effective_count"] == 1
    assert wire.reward(decision, 1.0) == "accepted"
    assert wire.policy("linucb")["head"]["effective_count"] == 2
    assert wire.get(f"/decisions/{decision['id']}").json()["schema_version"] == 1
    wire.reward(wire.select(policy="linucb"), 1.0)
    assert wire.policy("linucb")["head"]["effective_count"] == 3


@pytest.mark.parametrize(
    ("setting", "kept"),
    [({"alpha": 0.5}, 1), ({"share": 9.0}, 1), ({"epsilon": 0.5}, 1), ({"ridge": 4.0}, 0)],
)
def test_settings_that_do_not_touch_the_head_leave_it(wire: Wire, setting: Json, kept: int) -> None:
    taught(wire)
    policies = wire.definition()["policies"]
    answer = wire.redefine(policies={**policies, "linucb": {**policies["linucb"], **setting}})
    assert answer["schema_version"] == 1
    assert wire.policy("linucb")["head"]["effective_count"] == kept


def test_a_removed_policy_takes_rewards_and_a_frozen_head_learns_nothing(wire: Wire) -> None:
    decision = taught(wire)
    wire.redefine(policies={"frozen": {"kind": "linucb", "learning": False}})
    assert wire.reward(decision, 1.0) == "accepted"
    wire.teach(1, "frozen")
    status = wire.policy("frozen")
    assert (status["rewards"], status["head"]["effective_count"]) == (1, 0)


def test_a_dry_run_says_what_a_definition_would_restart_and_changes_nothing(wire: Wire) -> None:
    taught(wire)
    wider = wire.definition()
    wider["features"]["context"]["member"] = {"type": "boolean", "default": False}
    wider["policies"]["lints"] = {"kind": "neural_linear_ts"}
    before = wire.get("/experiments/shop").json()
    told = wire.put("/experiments/shop?dry_run=true", wider)
    assert told.status_code == 200
    assert wire.get("/experiments/shop").json() == before
    done = wire.put("/experiments/shop", wider).json()
    assert {**told.json(), "position": 0} == {**done, "position": 0}
    assert done["restarted"].keys() == {"lints"}
    assert done["restarted"]["lints"].startswith("it learned with another")
    assert wire.policy("linucb")["head"]["effective_count"] == 1
    assert wire.put("/experiments/shop?dry_run=true", {"policies": {}}).status_code == 422
    assert wire.put("/experiments/new?dry_run=true", before["definition"]).json()["revision"] == 1
    assert wire.get("/experiments/new").status_code == 404


def test_a_default_experiment_serves_requests_that_name_none() -> None:
    with serving(default_experiment="shop") as wire:
        put(wire, "coins", COINS)
        assert wire.select()["experiment"] == "shop"
        assert wire.select(experiment="coins", context={})["experiment"] == "coins"
        assert wire.get("/policies/linucb").status_code == 200
    with serving() as wire:
        put(wire, "coins", COINS)
        body = {"context": {"persona": "cat"}}
        problem = expect_problem(wire.post("/select", body), 422)
        say = (
            "name the experiment: FORAGE_DEFAULT_EXPERIMENT names none; there are: 'shop', 'coins'"
        )
        assert problem["errors"] == [{"path": "experiment", "message": say}]


def test_a_default_experiment_that_does_not_exist_is_told(
    caplog: pytest.LogCaptureFixture, keys: Keys
) -> None:
    """At the start, and in each refusal: it may be defined later."""
    say = "FORAGE_DEFAULT_EXPERIMENT names 'coins', which does not exist"
    with serving(default_experiment="coins") as wire:
        assert say in caplog.text
        body = {"context": {"persona": "cat"}}
        for answer in (wire.post("/select", body), wire.get("/arms"), wire.get("/policies")):
            problem = expect_problem(answer, 404)
            assert problem["detail"] == f"{say}: name the experiment; there are: 'shop'"
        problem = expect_problem(wire.post("/select", {"experiment": "coins"}), 404)
        assert problem["detail"] == "there is no experiment 'coins'; there are: 'shop'"
        put(wire, "coins", COINS)
        assert wire.post("/select", {}).status_code == 200
    with serving(default_experiment="coins", keys=keys.path) as wire:
        problem = expect_problem(wire.get("/arms", headers=keys.headers("admin")), 404)
        assert problem["detail"] == f"{say}: name the experiment; GET /experiments lists them"
