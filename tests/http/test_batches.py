"""The batch forms: many at once, each answered or refused for itself."""

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
        {"path": "context.persona", "message": "is not one of the known values"}
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
            ("/reward/batch", [good, {**good, "reward": "much"}], "requests.1.reward"),
        ):
            answer = wire.post(path, {"requests": requests})
            assert paths(expect_problem(answer, 422)) == [fault]
        assert wire.reward(decision, 1.0) == "accepted"
