"""GET /decisions/{id}: what was decided and why; decisions too large for their token."""

from collections.abc import Iterator

import pytest

from service.log.stores.memory import MemoryStore
from service.security.token import TOKEN_CHARACTERS
from tests.support.service import Json, Wire, expect_problem, paths, serving


def test_a_decision_is_told_as_it_was_made(wire: Wire) -> None:
    decision = wire.select(policy="lints", context={"persona": "dog", "age": 3.5, "member": True})
    told = wire.explain(decision)
    assert told["context"] == {"persona": "dog", "age": 3.5, "member": True}
    for name in ("id", "experiment", "policy", "model_version", "ranking", "reward_by"):
        assert told[name] == decision[name]
    chances = {each["arm"]: each["probability"] for each in told["candidates"]}
    assert chances.keys() == {"kibble", "mouse", "ball"}
    assert sum(chances.values()) == pytest.approx(1)
    assert chances[decision["arm"]] == decision["propensity"]
    assert all(each["width"] > 0 for each in told["candidates"])
    assert told["slate_propensity"] == decision["propensity"]
    assert told["slate_log_propensity"] == decision["slate_log_propensity"]
    assert told["learned"] == []


@pytest.mark.parametrize("policy", ["linucb", "lints", "named_only"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_the_choice_follows_from_what_was_logged(wire: Wire, policy: str, top_k: int) -> None:
    for _ in range(5):
        assert wire.explain(wire.select(policy=policy, top_k=top_k))["choice_follows"]


def test_means_are_those_of_the_decision_until_the_head_moves_on(wire: Wire) -> None:
    decision = wire.select(policy="linucb", arms=["mouse"])
    before = wire.explain(decision)
    assert before["same_head"]
    assert before["candidates"][0]["mean"] == 0
    wire.reward(decision, 1.0)
    after = wire.explain(decision)
    assert not after["same_head"]
    assert after["candidates"][0]["mean"] > 0
    assert after["candidates"][0]["width"] < before["candidates"][0]["width"]


@pytest.mark.parametrize("features", [{"category": "food"}, {}])
def test_an_inline_arm_is_told_with_the_features_it_was_sent_with(
    wire: Wire, features: Json
) -> None:
    if not features:
        schema = wire.definition()["features"]
        schema["arm"] = {"brand": schema["arm"]["brand"]}
        wire.redefine(features={**schema, "crosses": []}, arms={})
    decision = wire.select(policy="linucb", arms=[{"id": "treat", "features": features}])
    assert wire.explain(decision)["candidates"][0]["mean"] == 0


def test_a_decision_of_other_features_or_of_a_removed_policy_is_told_without_means(
    wire: Wire,
) -> None:
    decision = wire.select(policy="linucb")
    features = wire.definition()["features"]
    features["context"]["age"]["scale"] = 20.0
    wire.redefine(features=features)
    told = wire.explain(decision)
    assert told["schema_version"] == 1
    assert {each["mean"] for each in told["candidates"]} == {None}
    decision = wire.select(policy="linucb")
    wire.redefine(policies={"other": {"kind": "random"}})
    assert wire.explain(decision)["candidates"][0]["mean"] is None


def test_an_unknown_decision_is_not_found(wire: Wire) -> None:
    decision = wire.select()
    for path in ("/decisions/nothing", f"/decisions/{'a' * 4_000}", "/decisions/%00"):
        assert paths(expect_problem(wire.get(path), 404)) == ["id"]
    elsewhere = wire.get(f"/decisions/{decision['id']}", params={"experiment": "coins"})
    expect_problem(elsewhere, 404)
    assert wire.get(f"/decisions/{decision['id']}?experiment=shop").json()["id"] == decision["id"]


# -- features too many for the token ---------------------------------------------------------------

EMBEDDED = {
    "features": {"context": {"photo": {"type": "vector", "size": 500, "scale": 1.0}}},
    "arms": {"a": {}, "b": {}},
    "policies": {"linucb": {"kind": "linucb"}},
}
PHOTO = {"photo": [0.5] * 500}


class Forgetful(MemoryStore):
    """Loses the rows of decisions when told to, as trimming does."""

    forgets = False

    async def decision(self, experiment: str, decision: str) -> bytes | None:
        return None if self.forgets else await super().decision(experiment, decision)


@pytest.fixture
def store() -> Forgetful:
    return Forgetful()


@pytest.fixture
def photos(store: Forgetful) -> Iterator[Wire]:
    with serving(store) as wire:
        assert wire.put("/experiments/photos", EMBEDDED).status_code == 201
        yield wire


def test_features_that_are_not_in_the_token_are_read_from_the_log(photos: Wire) -> None:
    decision = photos.select(experiment="photos", context=PHOTO)
    assert photos.reward(decision, 1.0) == "accepted"
    assert photos.reward(decision, 1.0) == "duplicate"
    photos.reward(photos.select(experiment="photos", context={"photo": [0.0] * 500}), 0.0)
    later = photos.select(experiment="photos", context=PHOTO)
    means = [each["mean"] for each in photos.explain(later)["candidates"]]
    # [1, 0.5, ...] earned 1 and [1, 0, ...] 0: level 0.5; 3 a + 250 w = 0 and 0.5 a + 126 w = 0.25
    # for the intercept and each weight give a + 250 w = 500 / 1012.
    assert means == pytest.approx([0.5 + 500 / 1012] * 2)


def test_without_its_row_such_a_decision_is_over(photos: Wire, store: Forgetful) -> None:
    large = photos.select(experiment="photos", context=PHOTO, top_k=2)
    assert len(large["decision_id"]) <= TOKEN_CHARACTERS  # 500 numbers are 4,000 bytes
    small = photos.select(experiment="shop")
    store.forgets = True
    photos.refuse(410, large)
    assert photos.reward(small, 1.0) == "accepted"
