"""POST /experiments/{name}/import: what is taken, what is refused, and where it is said."""

import json
from typing import Any

import msgspec
import pytest

from service.http.imports import PlainVisit, examined
from service.manage.importing import decision_id
from tests.support.service import Json, Wire, expect_problem, paths, serving
from tests.support.stores import Disk

AT = "2024-05-01T12:00:00Z"


def visit(number: int = 0, **changes: Any) -> Json:
    """A cat was shown the ball, as one of two, and did not care; None leaves out."""
    full = {
        "id": f"visit-{number}",
        "at": AT,
        "context": {"persona": "cat"},
        "arms": ["mouse", "ball"],
        "arm": "ball",
        "propensity": 0.5,
        "reward": 0.0,
        **changes,
    }
    return {name: value for name, value in full.items() if value is not None}


def take(wire: Wire, *visits: Json, path: str = "/import", **more: Any) -> list[Json]:
    answer = wire.post(path, {"policy": "linucb", "visits": list(visits), **more})
    assert answer.status_code == 200, answer.text
    results: list[Json] = answer.json()["results"]
    return results


def statuses(results: list[Json]) -> list[Any]:
    return [each["answer"] or each["status"] for each in results]


def explain(wire: Wire, number: int) -> Json:
    return wire.explain({"id": decision_id(f"visit-{number}")})


@pytest.mark.parametrize("path", ["/import", "/experiments/shop/import"])
def test_a_visit_is_imported_once(wire: Wire, path: str) -> None:
    assert statuses(take(wire, visit(), visit(1), path=path)) == ["imported"] * 2
    assert statuses(take(wire, visit(1), visit(), path=path)) == ["duplicate"] * 2
    same = [visit(at=at) for at in ("2024-05-01T14:00:00+02:00", 1714564800)]
    assert statuses(take(wire, *same, path=path)) == ["duplicate"] * 2
    after = wire.policy("linucb")
    assert (after["rewards"], after["decisions"], after["mean_reward"]) == (2, 2, 0.0)
    [other] = take(wire, visit(), policy="lints", path=path)
    assert other["status"] == 409
    assert wire.rewards("lints") == 0


def test_an_imported_decision_is_told(wire: Wire) -> None:
    rope = {"id": "rope", "features": {"category": "toy"}}
    take(
        wire,
        visit(reward=1),
        visit(1, probabilities=[0.5, 0.5]),
        visit(2, arms=["ball", rope], arm="rope"),
    )
    told, known, outside = (explain(wire, number) for number in range(3))
    assert (told["at"], told["model_version"]) == (AT, "imported/0@0")
    assert told["ranking"] == [{"arm": "ball", "propensity": 0.5}]
    assert told["learned"] == [{"arm": "ball", "reward": 1.0, "default": False, "weight": 1.0}]
    assert not told["choice_follows"]
    chances = {each["arm"]: each["probability"] for each in told["candidates"]}
    assert chances == {"mouse": None, "ball": 0.5}
    assert all(each["width"] > 0 for each in told["candidates"])
    assert [each["probability"] for each in known["candidates"]] == [0.5, 0.5]
    assert outside["ranking"][0]["arm"] == "rope"


@pytest.mark.parametrize("third", [0.333333, 0.33334, 1 / 3])
def test_rounded_probabilities_are_normalised(wire: Wire, third: float) -> None:
    """They may miss their sum by 1e-4."""
    chances = [third, third, third]
    arms = ["mouse", "ball", "kibble"]
    same = visit(arms=arms, propensity=third, probabilities=chances)
    assert statuses(take(wire, same)) == ["imported"]
    assert statuses(take(wire, same)) == ["duplicate"]
    told = [each["probability"] for each in explain(wire, 0)["candidates"]]
    assert told == pytest.approx([1 / 3] * 3, abs=1e-5)
    shown = visit(1, arms=arms, propensity=1 / 3, probabilities=[0.333333] * 3)
    assert statuses(take(wire, shown)) == ["imported"]


@pytest.mark.parametrize(
    ("chances", "said"),
    [
        ([0.5, 0.5002], "adds up to 1.0002: must add up to 1, within 0.0001"),
        ([0.5, 0.4], "to 0.9:"),
    ],
)
def test_the_sum_of_other_probabilities_is_told(
    wire: Wire, chances: list[float], said: str
) -> None:
    [result] = take(wire, visit(propensity=chances[1], probabilities=chances))
    assert result["problem"]["errors"][0]["path"] == "probabilities"
    assert said in result["problem"]["detail"]


def test_what_is_left_out_has_defaults(wire: Wire) -> None:
    """No arms: the shown one alone. No reward: nothing is learned, and no default reward is due."""
    assert statuses(take(wire, visit(arms=None, reward=None, unit="u"))) == ["imported"]
    told = explain(wire, 0)
    assert [each["arm"] for each in told["candidates"]] == ["ball"]
    assert told["learned"] == []
    assert wire.rewards() == 0
    assert wire.run(wire.services.expiry.expire_due()) == 0


REFUSED: list[tuple[Json, str]] = [
    ({"at": "2999-01-01T00:00:00Z"}, "at"),
    ({"context": {"persona": "dragon"}}, "context.persona"),
    ({"context": {}}, "context.persona"),
    ({"arms": ["mouse", "rope"]}, "arms.1"),
    ({"arms": ["ball", "ball"]}, "arms"),
    ({"arm": "kibble"}, "arm"),
    ({"arm": "rope", "arms": None}, "arms.0"),
    ({"reward": 1.5}, "reward"),
    ({"probabilities": [0.5]}, "probabilities"),
    ({"probabilities": [0.5, 0.6]}, "probabilities"),
    ({"probabilities": [0.6, 0.4]}, "probabilities"),
]


@pytest.mark.parametrize(("changes", "path"), REFUSED)
def test_a_wrong_visit_is_refused_for_itself(wire: Wire, changes: Json, path: str) -> None:
    wrong = visit(1, **changes)
    stopped = take(wire, visit(0), wrong, visit(2))
    assert statuses(stopped) == ["imported", 422]
    assert paths(stopped[1]["problem"]) == [path]
    skipped = take(wire, visit(0), wrong, visit(2), skip_refused=True)
    assert statuses(skipped) == ["duplicate", 422, "imported"]
    assert wire.rewards() == 2


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"reward": 1.0}, "reward"),
        ({"propensity": 0.25}, "id"),
        ({"arm": "mouse"}, "id"),
        ({"at": "2024-05-01T12:00:01Z"}, "id"),
        ({"unit": "someone"}, "id"),
    ],
)
def test_another_content_under_the_same_id_is_a_conflict(
    wire: Wire, changes: Json, path: str
) -> None:
    take(wire, visit())
    [result] = take(wire, visit(**changes))
    assert (result["status"], paths(result["problem"])) == (409, [path])


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ('"id": ""', "id"),
        ('"at": "2024-05-01T12:00:00"', "at"),
        ('"at": null', "at"),
        ('"arm": 4', "arm"),
        ('"arms": []', "arms"),
        ('"propensity": 0.0', "propensity"),
        ('"propensity": 2', "propensity"),
        ('"propensity": "0.5"', "propensity"),
        ('"probabilities": [-0.5, 1.5]', "probabilities.0"),
        ('"colour": "red"', "colour"),
        ('"reward": NaN', "reward"),
        ('"reward": 1e999', "reward"),
        (f'"reward": {"9" * 5_001}', "reward"),
        ('"context": {"persona": NaN}', "context.persona"),
        ('"unit": "\\ud800"', None),
        ('"arms": [{"id": "x", "features": {"\\ud800": 1}}]', None),
    ],
)
def test_a_visit_of_a_wrong_form_is_refused_for_itself(
    wire: Wire, changes: str, path: str | None
) -> None:
    name = changes.split('"')[1]
    others = {member: value for member, value in visit(1).items() if member != name}
    wrong = json.dumps(others)[:-1] + f", {changes}}}"
    visits = ", ".join([json.dumps(visit(0)), wrong, "7", "null", json.dumps(visit(2))])
    body = f'{{"policy": "linucb", "visits": [{visits}], "skip_refused": true}}'
    sent = wire.post("/import", content=body, headers={"Content-Type": "application/json"})
    assert sent.status_code == 200, sent.text
    results = sent.json()["results"]
    assert statuses(results) == ["imported", 422, 422, 422, "imported"]
    assert paths(results[1]["problem"]) == ([] if path is None else [path])
    assert results[2]["problem"]["detail"] == "must be an object"
    assert wire.rewards() == 2


def test_a_visit_of_a_wrong_form_is_the_last_where_none_is_skipped(wire: Wire) -> None:
    assert statuses(take(wire, visit(0), visit(1, propensity=2), visit(2))) == ["imported", 422]
    assert wire.rewards() == 1


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"policy": "linucb", "visits": 7}', '{"policy": "linucb", "visits": [']
)
def test_an_unreadable_import_is_refused_whole(wire: Wire, body: str) -> None:
    answer = wire.post("/import", content=body, headers={"Content-Type": "application/json"})
    expect_problem(answer, 400 if body.endswith(("{", "[")) else 422)


def test_an_unknown_policy_or_experiment_and_a_long_batch_are_refused(wire: Wire) -> None:
    body = {"policy": "nobody", "visits": [visit()]}
    assert paths(expect_problem(wire.post("/import", body), 404)) == ["policy"]
    elsewhere = wire.post("/experiments/zoo/import", body)
    assert paths(expect_problem(elsewhere, 404)) == ["experiment"]
    with serving(max_batch=2) as small:
        many = {"policy": "linucb", "visits": [visit(n) for n in range(3)]}
        assert paths(expect_problem(small.post("/import", many), 422)) == ["visits"]


def test_a_log_that_is_gone_takes_none() -> None:
    disk = Disk()
    with serving(disk) as wire:
        disk.full = True
        assert not wire.select()["logged"]
        expect_problem(wire.post("/import", {"policy": "linucb", "visits": [visit()]}), 503)
        disk.full = False
        wire.until(lambda: not wire.services.log.committer.degraded)
        assert statuses(take(wire, visit())) in (["imported"], ["duplicate"])
        assert wire.rewards() == 1


LONG = "x" * 257
IDS = ["a", "", ".", "..", "...", ".\n", "x" * 256, LONG, 4, None]
NUMBERS = [0, 0.5, 1, 1.5, -0.5, 2**70, 10**400, float("nan"), float("inf"), True, "0.5", None]
VALUES = [*NUMBERS, "x", LONG, [0.5, 1], [float("nan")], [True], {}]
MEMBERS: dict[str, list[Any]] = {
    "id": IDS,
    "at": [
        AT,
        "2024-05-01T12:00:00",
        "2024-05-01 12:00:00.5+02:00",
        "1714564800",
        *NUMBERS,
        2e10,
        3e10,
    ],
    "context": [{}, [], None, {f"n{n}": 1 for n in range(257)}, *({"x": each} for each in VALUES)],
    "arms": [[], None, "a", ["a", 4], [{"id": "a"}], *([each, "b"] for each in IDS)],
    "arm": IDS,
    "propensity": NUMBERS,
    "probabilities": [[], None, *([each] for each in NUMBERS)],
    "reward": NUMBERS,
    "unit": IDS,
    "colour": ["red"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in MEMBERS.items() for value in values]
)
def test_a_visit_that_is_read_at_once_is_the_one_that_its_model_describes(
    name: str, value: Any
) -> None:
    sent = {**visit(), name: value}
    try:
        found = msgspec.convert(sent, PlainVisit).visit()
    except msgspec.ValidationError:
        return
    assert found == examined(sent)


def test_nearly_all_visits_are_read_at_once() -> None:
    full = visit(
        unit="u", probabilities=[0.5, 0.5], context={"age": 7, "taste": [1, 0.5], "x": None}
    )
    for sent in (full, visit(arms=None, reward=None, at=1714564800)):
        assert msgspec.convert(sent, PlainVisit).visit() == examined(sent)
