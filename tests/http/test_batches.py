"""The batch forms: many at once, each answered or refused for itself."""

import json

import pytest

from tests.support.service import Json, Wire, expect_problem, paths, serving

CAT = {"persona": "cat"}


def results(wire: Wire, path: str, requests: list[Json]) -> list[Json]:
    answer = wire.post(path, {"requests": requests})
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["results"]
    assert len(found) == len(requests)
    return found


def test_each_decision_of_a_batch_is_answered_or_refused_in_its_place(wire: Wire) -> None:
    found = results(
        wire,
        "/select/batch",
        [
            {"context": CAT, "policy": "linucb"},
            {"context": {"persona": "fish"}},
            {"context": CAT, "experiment": "nowhere"},
            {"context": CAT, "arms": ["ball"]},
        ],
    )
    assert [result["status"] for result in found] == [200, 422, 404, 200]
    assert found[0]["answer"]["policy"] == "linucb"
    assert found[0]["problem"] is None
    assert found[1]["answer"] is None
    assert found[1]["problem"]["errors"] == [
        {"path": "context.persona", "message": "is not one of the known values: 'cat', 'dog'"}
    ]
    assert found[3]["answer"]["arm"] == "ball"
    assert wire.reward(found[3]["answer"], 1.0) == "accepted"


def test_each_reward_of_a_batch_is_settled_once_in_its_place(wire: Wire) -> None:
    one, other = wire.select(policy="linucb"), wire.select(policy="linucb")
    found = results(
        wire,
        "/reward/batch",
        [
            {"decision_id": one["decision_id"], "reward": 1.0},
            {"decision_id": one["decision_id"], "reward": 1.0},
            {"decision_id": other["decision_id"], "reward": 2.0},
            {"decision_id": "forged", "reward": 1.0},
            {"decision_id": other["decision_id"], "feedback": "cascade", "clicked": None},
        ],
    )
    assert [result["status"] for result in found] == [200, 200, 422, 422, 200]
    said = [result["answer"] and result["answer"]["status"] for result in found]
    assert said == ["accepted", "duplicate", None, None, "accepted"]
    again = results(wire, "/reward/batch", [{"decision_id": one["decision_id"], "reward": 0.0}])
    assert again[0]["problem"]["status"] == 409
    assert wire.policy("linucb")["rewards"] == 2


def test_a_full_batch_of_rewards_fits_into_a_body(wire: Wire) -> None:
    """1,000 decisions of the shop, one request each way."""
    decisions = results(wire, "/select/batch", [{"context": CAT}] * 1_000)
    rewards = [{"decision_id": d["answer"]["decision_id"], "reward": 1.0} for d in decisions]
    settled = results(wire, "/reward/batch", rewards)
    assert all(result["answer"] == {"status": "accepted"} for result in settled)


@pytest.mark.parametrize(
    ("path", "fault", "where"),
    [
        ("/select/batch", '{"context": {"persona": 7}}', "context.persona"),
        ("/select/batch", '{"context": {"persona": "cat"}, "color": 1}', "color"),
        ("/select/batch", '{"context": {"persona": NaN}}', None),
        ("/select/batch", '{"top_k": -Infinity}', None),
        ("/select/batch", "7", ""),
        ("/reward/batch", '{"decision_id": "x", "reward": "much"}', "reward"),
        ("/reward/batch", '{"decision_id": "x", "reward": NaN}', None),
        ("/reward/batch", '{"decision_id": "x", "reward": 1, "rewrad": 1}', "rewrad"),
        ("/reward/batch", "null", ""),
    ],
)
def test_one_fault_refuses_one_item(wire: Wire, path: str, fault: str, where: str | None) -> None:
    """NaN is no JSON: its item alone cannot be read."""
    good = json.dumps({"context": CAT})
    if path == "/reward/batch":
        good = json.dumps({"decision_id": wire.select()["decision_id"], "reward": 1.0})
    body = '{"requests": [' + f"{fault}, {good}, {fault}" + "]}"
    answer = wire.client.post(path, content=body, headers={"Content-Type": "application/json"})
    items = wire.run(answer).json()["results"]
    assert [each["status"] for each in items] == [422, 200, 422]
    for item in (items[0], items[2]):
        assert paths(item["problem"]) == ([] if where is None else [where])


@pytest.mark.parametrize("body", ["", "{", "[]", '{"requests": [NaN', '{"requests": NaN}'])
def test_an_unreadable_batch_is_refused_whole(wire: Wire, body: str) -> None:
    for path in ("/select/batch", "/reward/batch"):
        sent = wire.client.post(path, content=body, headers={"Content-Type": "application/json"})
        answer = wire.run(sent)
        assert answer.status_code in (400, 422)
        expect_problem(answer, answer.status_code)


def test_a_null_feature_takes_its_default() -> None:
    with serving() as wire:
        features = wire.definition()["features"]
        features["context"]["member"] = {"type": "boolean", "default": True}
        features["arm"]["price"] = {"type": "numeric", "default": 2.0}
        wire.redefine(features=features)
        given = {"persona": "cat", "member": None}
        arms = ["ball", {"id": "new", "features": {"category": "toy", "price": None}}]
        decision = wire.select(policy="lints", context=given, arms=arms)
        [row] = [wire.get(f"/decisions/{decision['id']}").json()]
        assert row["context"] == {"persona": "cat"}
        toy = {"features": {"category": "toy", "price": None}}
        assert wire.put("/arms/rope", toy).status_code == 200
        assert wire.get("/arms/rope").json()["features"] == {"category": "toy"}
        refused = wire.post("/select", {"context": {"persona": None}})
        assert expect_problem(refused, 422)["errors"][0]["message"] == "is missing"


def test_a_batch_of_a_wrong_form_or_length_is_refused_whole() -> None:
    with serving(max_batch=2) as wire:
        assert len(results(wire, "/select/batch", [{"context": CAT}] * 2)) == 2
        decision = wire.select()
        good = {"decision_id": decision["decision_id"], "reward": 1.0}
        for path, requests, fault in (
            ("/select/batch", [{"context": CAT}] * 3, "requests"),
            ("/reward/batch", [good] * 3, "requests"),
            ("/select/batch", [], "requests"),
            ("/reward/batch", [], "requests"),
        ):
            answer = wire.post(path, {"requests": requests})
            assert paths(expect_problem(answer, 422)) == [fault]
        assert wire.reward(decision, 1.0) == "accepted"
