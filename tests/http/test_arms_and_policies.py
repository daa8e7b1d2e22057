"""The catalogue while it serves, and how each policy does."""

import asyncio
from urllib.parse import quote

import pytest

from service.features.row import Row
from service.state.decisions import decode_decision
from tests.support.service import Wire, expect_problem, paths

TOY = {"category": "toy"}
SCOPES = ["", "/experiments/shop"]


def catalogue(wire: Wire) -> dict[str, object]:
    return {arm["id"]: arm["features"] for arm in wire.get("/arms").json()["arms"]}


@pytest.mark.parametrize("scope", SCOPES)
def test_arms_are_added_read_changed_and_removed(wire: Wire, scope: str) -> None:
    path = f"{scope}/arms/rope"
    expect_problem(wire.get(path), 404)
    added = wire.put(path, {"features": {"category": "toy"}})
    assert added.status_code == 200
    assert added.json() == {"id": "rope", "features": {"category": "toy"}, "attributes": {}}
    wire.put(path, {"features": {"category": "food", "brand": "knot"}})
    assert wire.get(path).json()["features"] == {"category": "food", "brand": "knot"}
    assert catalogue(wire).keys() == {"kibble", "mouse", "ball", "rope"}
    assert wire.delete(path).status_code == 204
    expect_problem(wire.delete(path), 404)
    many = {"rope": {"category": "toy"}, "kibble": {"category": "food", "brand": "new"}}
    answer = wire.post(f"{scope}/arms", {"arms": many})
    assert {arm["id"]: arm["features"] for arm in answer.json()["arms"]} == many
    assert catalogue(wire)["kibble"] == {"category": "food", "brand": "new"}
    assert catalogue(wire).keys() == {"kibble", "mouse", "ball", "rope"}
    wire.redefine(arms={"mouse": {"category": "toy"}})
    assert catalogue(wire).keys() == {"mouse"}


ODD = [
    "openai/gpt-4o",
    "a/",
    "/",
    "two\nlines\n",
    "..\n",
    "a/../b",
    "%2F",
    "?#",
    "é ...",
    "x" * 128,
]
"""Ids that a body takes."""


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("arm", ODD)
def test_every_arm_that_a_body_takes_has_a_path(wire: Wire, scope: str, arm: str) -> None:
    assert wire.post(f"{scope}/arms", {"arms": {arm: TOY}}).status_code == 200
    path = f"{scope}/arms/{quote(arm, safe='')}"
    assert wire.get(path).json() == {"id": arm, "features": TOY, "attributes": {}}
    assert wire.put(path, {"features": {"category": "food"}}).json()["id"] == arm
    assert wire.delete(path).status_code == 204
    assert arm not in catalogue(wire)


@pytest.mark.parametrize("dots", [".", ".."])
def test_dots_are_no_ids(wire: Wire, dots: str) -> None:
    """A client resolves them: `DELETE /experiments/shop/arms/..` deletes the experiment."""
    visit = {"id": "1", "at": 0, "arm": "kibble", "propensity": 1}
    inline = {"id": dots, "features": TOY}
    for path, body, where in (
        ("/arms", {"arms": {dots: TOY}}, f"arms.{dots}"),
        ("/select", {"arms": [inline]}, "arms.0.id"),
        ("/select", {"unit": dots}, "unit"),
        ("/import", {"policy": "lints", "visits": [{**visit, "unit": dots}]}, "unit"),
        ("/import", {"policy": "lints", "visits": [{**visit, "arm": dots}]}, "arm"),
    ):
        answer = wire.post(path, body)
        if path == "/import":
            problem = answer.json()["results"][0]["problem"]
        else:
            problem = expect_problem(answer, 422)
        [fault] = problem["errors"]
        assert fault["path"] == where
        assert "'.' or '..'" in fault["message"]
    definition = wire.definition()
    arms = {**definition["arms"], dots: TOY}
    expect_problem(wire.put("/experiments/shop", {**definition, "arms": arms}), 422)
    escaped = dots.replace(".", "%2E")
    expect_problem(wire.put(f"/arms/{escaped}", {"features": TOY}), 422)
    expect_problem(wire.delete(f"/units/{escaped}"), 422)
    expect_problem(wire.put(f"/experiments/{escaped}", definition), 422)


def test_an_arm_that_is_removed_while_it_is_put_is_answered(wire: Wire) -> None:
    async def put_and_remove() -> list[int]:
        path, body = "/arms/rope", {"features": {"category": "toy"}}
        many = {"arms": {"rope": body["features"], "bone": body["features"]}}
        answers = await asyncio.gather(
            wire.client.put(path, json=body),
            wire.client.post("/arms", json=many),
            wire.client.delete(path),
        )
        return [answer.status_code for answer in answers]

    wire.put("/arms/rope", {"features": {"category": "toy"}})
    assert wire.run(put_and_remove()) == [200, 200, 204]
    assert catalogue(wire).keys() >= {"kibble", "mouse", "ball", "bone"}


def test_a_large_page_of_arms_lets_others_work_in_between(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.log.replay.SLICE_SECONDS", -1.0)
    state = wire.services.log.replicas.states["shop"]
    seen = set()

    async def put() -> int:
        arms = {f"arm-{number}": {"category": "toy"} for number in range(200)}
        putting = asyncio.create_task(wire.client.post("/arms", json={"arms": arms}))
        while not putting.done():
            seen.add(len(state.arms))
            await asyncio.sleep(0)
        return putting.result().status_code

    assert wire.run(put()) == 200
    assert len(state.arms) == 203
    assert len(seen) > 100


def test_a_new_arm_is_shown_at_once_and_a_removed_one_no_longer(wire: Wire) -> None:
    wire.put("/arms/rope", {"features": {"category": "toy"}})
    assert {slot["arm"] for slot in wire.select(top_k=4)["ranking"]} > {"rope"}
    decision = wire.select(arms=["rope"], policy="linucb")
    wire.delete("/arms/rope")
    assert "rope" not in {slot["arm"] for slot in wire.select(top_k=3)["ranking"]}
    named = wire.post("/select", {"context": {"persona": "cat"}, "arms": ["rope"]})
    assert paths(expect_problem(named, 422)) == ["arms.0"]
    assert wire.reward(decision, 1.0) == "accepted"
    assert wire.policy("linucb")["head"]["effective_count"] == 1
    assert wire.explain(decision)["candidates"][0]["mean"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("PUT", "/arms/rope", {"features": {}}, "features.category"),
        ("PUT", "/arms/rope", {"features": {"category": "drink"}}, "features.category"),
        ("PUT", "/arms/rope", {"features": {"category": 1}}, "features.category"),
        ("PUT", "/arms/rope", {"features": {"category": "toy", "size": 1}}, "features.size"),
        ("PUT", "/arms/rope", {"features": []}, "features"),
        ("PUT", "/arms/rope", {"category": "toy"}, "category"),
        ("PUT", f"/arms/{'a' * 257}", {"features": {"category": "toy"}}, "arm"),
        ("POST", "/arms", {"arms": {}}, "arms"),
        (
            "POST",
            "/arms",
            {"arms": {"rope": TOY, "bone": {"category": "drink"}}},
            "arms.bone.category",
        ),
        ("POST", "/arms", {"arms": ["rope"]}, "arms"),
        ("POST", "/arms", {"arms": {"a" * 257: {"category": "toy"}}}, f"arms.{'a' * 191} ..."),
        ("POST", "/arms", {}, "arms"),
    ],
)
def test_a_faulty_arm_is_refused(
    wire: Wire, method: str, path: str, body: object, where: str
) -> None:
    before = catalogue(wire)
    problem = expect_problem(wire.request(method, path, json=body), 422)
    assert where in paths(problem)
    assert catalogue(wire) == before


# -- policies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
def test_a_policy_says_how_it_does(wire: Wire, scope: str) -> None:
    for reward in (1.0, 0.0, 1.0, 1.0):
        wire.reward(wire.select(policy="lints"), reward)
    status = wire.get(f"{scope}/policies/lints").json()
    assert (status["name"], status["kind"], status["share"]) == ("lints", "lints", 3.0)
    assert (status["decisions"], status["rewards"], status["mean_reward"]) == (4, 4, 0.75)
    low, high = status["mean_reward_interval"]
    assert 0 <= low < 0.75 < high <= 1
    assert status["propensity_minimum"] <= status["propensity_mean"] <= 1
    assert 0 < status["entropy_mean"] <= 1.1  # ln 3 at most
    assert status["model_version"] == "lints/0@5"
    assert status["head"]["effective_count"] == 4
    assert status["head"]["smallest_eigenvalue"] > 0
    assert status["head"]["condition_number"] >= 1
    assert (status["version"], status["versions"], status["staged"]) == (0, [], None)
    assert (status["training_due"], status["training_due_at"]) == (False, None)
    assert status["trained_to"] is None
    listed = wire.get(f"{scope}/policies").json()["policies"]
    assert [policy["name"] for policy in listed] == ["linucb", "lints", "named_only"]
    assert listed[1] == status
    idle = wire.policy("named_only")
    assert (idle["decisions"], idle["rewards"]) == (0, 0)
    unknown = ("mean_reward", "mean_reward_interval", "propensity_mean", "entropy_mean", "head")
    assert all(idle[name] is None for name in unknown)
    for path, fault in (("/policies/best", "policy"), ("/experiments/x/policies", "experiment")):
        assert paths(expect_problem(wire.get(path), 404)) == [fault]


# -- reset -----------------------------------------------------------------------------------------


def test_a_reset_policy_forgets_and_learns_again(wire: Wire) -> None:
    for policy in ("linucb", "lints"):
        wire.reward(wire.select(policy=policy), 1.0)
    empty, other = wire.policy("named_only")["rewards"], wire.policy("lints")["head"]["digest"]
    open_decision = wire.select(policy="linucb")
    expect_problem(wire.post("/policies/nobody/reset"), 404)
    expect_problem(wire.post("/policies/linucb/reset", headers={"If-Match": '"7"'}), 412)
    answer = wire.post("/policies/linucb/reset", headers={"If-Match": '"1"'})
    assert answer.status_code == 200
    assert answer.json()["rewards"] == empty == 0
    assert answer.json()["head"]["effective_count"] == 0
    assert wire.policy("lints")["head"]["digest"] == other
    assert wire.get("/experiments/shop").headers["etag"] == '"2"'
    assert wire.reward(open_decision, 1.0) == "accepted"
    assert wire.policy("linucb")["rewards"] == 1


@pytest.mark.parametrize("large", [False, True])
def test_arms_named_again_are_what_they_are_now(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr("service.decide.arms.LARGE", 1 if large else 20_000)

    def features() -> list[Row]:
        answer = wire.select(arms=["mouse", "kibble"], policy="linucb", top_k=2)
        row = wire.run(wire.services.store.decision("shop", answer["id"]))
        assert row is not None
        return [shown.row for shown in sorted(decode_decision(row).shown, key=lambda one: one.arm)]

    kibble, mouse = features()
    assert features() == [kibble, mouse]
    wire.put("/arms/mouse", {"features": {"category": "food", "brand": "squeak"}})
    changed = features()
    assert changed[0] == kibble
    assert changed[1] != mouse
    wire.delete("/arms/mouse")
    named = wire.post("/select", {"context": {"persona": "cat"}, "arms": ["mouse", "kibble"]})
    assert paths(expect_problem(named, 422)) == ["arms.0"]
    for _ in range(2):
        outside = [{"id": "bone", "features": TOY}, "kibble"]
        assert wire.select(arms=outside)["arm"] in ("bone", "kibble")
