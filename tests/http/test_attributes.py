"""Attributes of arms on the wire: declared, set, changed, refused, and logged with a decision."""

import asyncio
import json

import pytest

from service.state.decisions import decode_decision
from tests.support.service import Wire, expect_problem, paths

TOY = {"category": "toy"}
DECLARED = {"stock": "number", "maker": "text", "sale": "boolean"}
SCOPES = ["", "/experiments/shop"]


@pytest.fixture
def stocked(wire: Wire) -> Wire:
    """The shop with attributes, of which the ball has two."""
    arms = wire.definition()["arms"]
    arms["ball"] = {**arms["ball"], "stock": 3, "maker": "Acme"}
    wire.redefine(attributes=DECLARED, arms=arms)
    return wire


def test_a_definition_declares_them_and_has_them_beside_the_features(stocked: Wire) -> None:
    definition = stocked.definition()
    assert definition["attributes"] == DECLARED
    assert definition["arms"]["ball"] == {"category": "toy", "stock": 3, "maker": "Acme"}
    ball = {"id": "ball", "features": TOY, "attributes": {"stock": 3, "maker": "Acme"}}
    assert stocked.get("/arms/ball").json() == ball
    listed = stocked.get("/arms").json()["arms"]
    assert ball in listed
    assert [arm["attributes"] for arm in listed if arm["id"] != "ball"] == [{}, {}]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_put_replaces_them_and_a_patch_changes_the_named_ones(stocked: Wire, scope: str) -> None:
    path = f"{scope}/arms/ball"
    stocked.put(path, {"features": TOY, "attributes": {"stock": 2, "sale": True, "maker": None}})
    assert stocked.get(path).json()["attributes"] == {"stock": 2, "sale": True}
    changes = {"features": {"brand": "knot"}, "attributes": {"stock": 1, "sale": None}}
    answer = stocked.request("PATCH", path, json=changes)
    assert answer.status_code == 200
    features = {"category": "toy", "brand": "knot"}
    assert answer.json() == {"id": "ball", "features": features, "attributes": {"stock": 1}}
    assert stocked.get(path).json() == answer.json()
    answer = stocked.request("PATCH", path, json={"features": {"brand": None}})
    assert answer.json() == {"id": "ball", "features": TOY, "attributes": {"stock": 1}}
    assert stocked.request("PATCH", path, json={}).json() == answer.json()
    stocked.put(path, {"features": TOY})
    assert stocked.get(path).json()["attributes"] == {}


def test_many_are_set_side_by_side_with_features(stocked: Wire) -> None:
    many = {"ball": {**TOY, "stock": 9}, "rope": {**TOY, "sale": False}}
    answer = stocked.post("/arms", {"arms": many})
    assert answer.json()["arms"] == [
        {"id": "ball", "features": TOY, "attributes": {"stock": 9}},
        {"id": "rope", "features": TOY, "attributes": {"sale": False}},
    ]
    assert stocked.definition()["arms"]["rope"] == many["rope"]


def test_changes_at_once_of_different_values_lose_nothing(stocked: Wire) -> None:
    async def both() -> list[int]:
        parts = [{"stock": 7}, {"sale": True}, {"maker": "Knot"}]
        answers = await asyncio.gather(
            *(stocked.client.patch("/arms/ball", json={"attributes": part}) for part in parts)
        )
        return [answer.status_code for answer in answers]

    assert stocked.run(both()) == [200, 200, 200]
    attributes = {"stock": 7, "sale": True, "maker": "Knot"}
    assert stocked.get("/arms/ball").json()["attributes"] == attributes


def test_a_change_of_attributes_costs_no_policy_what_it_learned(stocked: Wire) -> None:
    stocked.teach(3)
    state = stocked.services.log.replicas.states["shop"]
    digest, candidates = stocked.policy("linucb")["head"]["digest"], state.candidates
    stocked.request("PATCH", "/arms/ball", json={"attributes": {"stock": 0}})
    assert state.candidates is candidates
    definition = stocked.definition()
    definition["attributes"]["margin"] = "number"
    told = stocked.put("/experiments/shop", definition).json()
    assert (told["schema_version"], told["restarted"]) == (1, {})
    assert told["changes"]["added"] == ["attributes.margin"]
    assert stocked.policy("linucb")["head"]["digest"] == digest
    told = stocked.put("/policies/linucb", {"kind": "linucb", "alpha": 0.5}).json()
    assert [*told["changes"]["changed"]] == ["policies.linucb.alpha"]
    stocked.put("/experiments/shop/policies/lints/share", {"share": 2})
    assert stocked.get("/arms/ball").json()["attributes"] == {"stock": 0, "maker": "Acme"}


@pytest.mark.parametrize(
    ("method", "path", "body", "where", "message"),
    [
        ("PUT", "/arms/ball", {"features": TOY, "attributes": {"stock": "3"}},
         "attributes.stock", "must be a number"),
        ("PUT", "/arms/ball", {"features": TOY, "attributes": {"sale": 1}},
         "attributes.sale", "must be true or false"),
        ("PUT", "/arms/ball", {"features": {"category": "toy", "stock": 3}},
         "features.stock", "there is no such feature; there are: 'brand', 'category'"),
        ("PATCH", "/arms/ball", {"attributes": {"stock": True}},
         "attributes.stock", "must be a number"),
        ("PATCH", "/arms/ball", {"attributes": {"stok": None}},
         "attributes.stok", "there is no such attribute; did you mean 'stock'?"),
        ("PATCH", "/arms/ball", {"features": {"category": None}},
         "features.category", "is missing"),
        ("PATCH", "/arms/ball", {"features": {"categry": None}},
         "features.categry", "there is no such feature; did you mean 'category'?"),
        ("POST", "/arms", {"arms": {"ball": {**TOY, "maker": 3}}},
         "arms.ball.maker", "must be a string"),
        ("POST", "/arms", {"arms": {"ball": {**TOY, "stok": 3}}},
         "arms.ball.stok", "there is no such feature or attribute; did you mean 'stock'?"),
        ("POST", "/select", {"arms": [{"id": "a", "features": TOY, "attributes": {"maker": 3}}]},
         "arms.0.attributes.maker", "must be a string"),
        ("POST", "/select", {"arms": [{"id": "a", "features": TOY, "attributes": {"stock": []}}]},
         "arms.0.attributes.stock", "must be a boolean, a number, a string or null"),
    ],
)  # fmt: skip
def test_a_wrong_attribute_is_refused_with_its_place(
    stocked: Wire, method: str, path: str, body: dict, where: str, message: str
) -> None:
    if path == "/select":
        body = {"context": {"persona": "cat"}, **body}
    before = stocked.definition()
    [fault] = expect_problem(stocked.request(method, path, json=body), 422)["errors"]
    assert (fault["path"], fault["message"]) == (where, message)
    assert stocked.definition() == before


def test_all_faults_of_an_arm_are_told_together(stocked: Wire) -> None:
    body = {"features": {"category": "drink"}, "attributes": {"stock": "3", "sale": 1}}
    problem = expect_problem(stocked.put("/arms/ball", body), 422)
    assert paths(problem) == ["attributes.sale", "attributes.stock", "features.category"]


def test_no_arm_is_made_by_a_patch(stocked: Wire) -> None:
    before = stocked.get("/experiments/shop").json()["position"]
    for values in ({"attributes": {"stock": 1}}, {"features": TOY}):
        answer = stocked.request("PATCH", "/arms/bal", json=values)
        [fault] = expect_problem(answer, 404)["errors"]
        assert fault == {"path": "arm", "message": "there is no arm 'bal'; did you mean 'ball'?"}
    assert stocked.get("/experiments/shop").json()["position"] == before


def test_a_definition_whose_arms_no_longer_fit_is_refused_with_the_path(stocked: Wire) -> None:
    definition = stocked.definition()
    for declared, message in (
        ({"stock": "text", "maker": "text"}, "must be a string"),
        ({"maker": "text"}, "there is no such feature or attribute; there are: "),
    ):
        answer = stocked.put("/experiments/shop", {**definition, "attributes": declared})
        [fault] = expect_problem(answer, 422)["errors"]
        assert fault["path"] == "arms.ball.stock"
        assert fault["message"].startswith(message)
    assert stocked.definition() == definition


def test_attributes_of_an_arm_outside_the_catalogue_are_logged_as_sent(stocked: Wire) -> None:
    rope = {"id": "rope", "features": TOY, "attributes": {"stock": 2, "maker": None}}
    question = {"context": {"persona": "cat"}, "arms": [rope, {"id": "bone", "features": TOY}]}
    key = {"Idempotency-Key": "again"}
    answer = stocked.post("/select", question, headers=key).json()
    row = stocked.run(stocked.services.store.decision("shop", answer["id"]))
    assert row is not None
    assert decode_decision(row).attributes == {"rope": {"stock": 2}}
    assert stocked.post("/select", question, headers=key).json()["id"] == answer["id"]
    other = json.loads(json.dumps(question))
    other["arms"][0]["attributes"]["stock"] = 1
    expect_problem(stocked.post("/select", other, headers=key), 409)


def test_an_experiment_without_declarations_has_no_attributes(wire: Wire) -> None:
    arm = {"id": "a", "features": TOY, "attributes": {"stock": 1}}
    for answer, where in (
        (wire.put("/arms/ball", {"features": TOY, "attributes": {"stock": 1}}), "attributes.stock"),
        (wire.post("/arms", {"arms": {"ball": {**TOY, "stock": 1}}}), "arms.ball.stock"),
        (
            wire.post("/select", {"context": {"persona": "cat"}, "arms": [arm]}),
            "arms.0.attributes.stock",
        ),
    ):
        assert paths(expect_problem(answer, 422)) == [where]
