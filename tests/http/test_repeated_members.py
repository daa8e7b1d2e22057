"""A JSON object that gives a member twice is refused with its path, wherever JSON comes in: readers
of JSON take the last one and say nothing."""

from typing import Any

import pytest

from tests.support.service import Json, Wire, expect_problem, paths

JSON = {"Content-Type": "application/json"}
TWICE = "is given more than once"
MARKER = "SECRETVALUE"


def send(wire: Wire, method: str, path: str, body: str) -> Any:
    return wire.request(method, path, content=body, headers=JSON)


SELECTS = [
    ('{"context": {"persona": "cat"}, "context": {"persona": "dog"}}', "context"),
    ('{"context": {"persona": "cat", "persona": "dog"}}', "context.persona"),
    ('{"context": {"persona": "cat", "perso\\u006ea": "dog"}}', "context.persona"),
    ('{"policy": "lints", "context": {"persona": "cat"}, "policy": null}', "policy"),
    ('{"top_k": 1, "context": {"persona": "cat"}, "top_k": 1}', "top_k"),
    ('{"unit": "a:b", "context": {"persona": "cat"}, "unit": "a:b:c"}', "unit"),
    ('{"context": {"persona": "cat", "age": null, "age": 3}}', "context.age"),
    (
        '{"context": {"persona": "cat"}, "arms": ["ball", {"id": "x", "id": "y"}]}',
        "arms.1.id",
    ),
    (
        '{"context": {"persona": "cat"}, "arms": [{"id": "x", "features": {"category": "toy", '
        '"category" : "food"}}]}',
        "arms.0.features.category",
    ),
]
DEFINITIONS = [
    (
        '{"policies": {"p": {"kind": "random", "share": 1, "share": 2}}, "arms": {}}',
        "policies.p.share",
    ),
    ('{"policies": {"p": {"kind": "random"}, "p": {"kind": "lints"}}}', "policies.p"),
    ('{"policies": {"p": {"kind": "random"}}, "arms": {"a": {}, "a": {}}}', "arms.a"),
    (
        '{"policies": {"p": {"kind": "random"}}, "reward": {"default": "none", "default": 0}}',
        "reward.default",
    ),
]


@pytest.mark.parametrize(("body", "path"), SELECTS)
def test_a_select_gives_each_member_once(wire: Wire, body: str, path: str) -> None:
    problem = expect_problem(send(wire, "POST", "/select", body), 422)
    assert problem["errors"] == [{"path": path, "message": TWICE}]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (', "reward": 0, "reward": 1', "reward"),
        (', "rewards": {"ball": 0, "ball": 1}', "rewards.ball"),
        (', "reward": 1, "reward_id": "a", "reward_id": "a"', "reward_id"),
        (', "reward": 1, "reward": 1, "reward_id": ""', "reward"),
        (', "feedback": "cascade", "clicked": "ball", "clicked": null', "clicked"),
    ],
)
def test_a_reward_gives_each_member_once(wire: Wire, more: str, path: str) -> None:
    decision = wire.select(policy="linucb")
    body = f'{{"decision_id": "{decision["decision_id"]}"{more}}}'
    problem = expect_problem(send(wire, "POST", "/reward", body), 422)
    assert problem["errors"] == [{"path": path, "message": TWICE}]
    assert wire.rewards() == 0
    beacon = wire.post("/beacon", content=f'{{"rewards": [{body}]}}')
    assert beacon.json() == {"statuses": [422]}


def test_each_item_of_a_batch_is_refused_for_itself(wire: Wire) -> None:
    faulty = [(body, path) for body, path in SELECTS if path != "top_k"]
    good = '{"context": {"persona": "cat"}, "unit": "a:b"}'
    items = ", ".join([good, *(body for body, _ in faulty), good])
    results = send(wire, "POST", "/select/batch", f'{{"requests": [{items}]}}').json()["results"]
    assert [each["status"] for each in results] == [200, *[422] * len(faulty), 200]
    for (_, path), result in zip(faulty, results[1:-1], strict=True):
        assert result["problem"]["errors"] == [{"path": path, "message": TWICE}]
    not_json = '{"context": {"persona": "cat", "age": NaN}}'
    body = f'{{"requests": [{not_json}, {faulty[1][0]}, {good}]}}'
    results = send(wire, "POST", "/select/batch", body).json()["results"]
    assert [each["status"] for each in results] == [422, 422, 200]
    assert results[1]["problem"]["errors"] == [{"path": "context.persona", "message": TWICE}]


@pytest.mark.parametrize("path", ["/select/batch", "/reward/batch"])
def test_a_list_of_requests_is_given_once(wire: Wire, path: str) -> None:
    for first in ("[]", "[{}]", '[{"reward": NaN}]'):
        answer = send(wire, "POST", path, f'{{"requests": {first}, "requests": [{{"a": 1}}]}}')
        assert paths(expect_problem(answer, 422)) == ["requests"]
        body = b'{"requests": [], "requests": [{"unit": "\xff"}]}'
        expect_problem(wire.request("POST", path, content=body, headers=JSON), 400)
    answer = wire.post("/beacon", content='{"rewards": [], "rewards": [{}]}')
    assert paths(expect_problem(answer, 422)) == ["rewards"]


@pytest.mark.parametrize(("body", "path"), DEFINITIONS)
def test_a_definition_gives_each_member_once(wire: Wire, body: str, path: str) -> None:
    problem = expect_problem(send(wire, "PUT", "/experiments/new", body), 422)
    assert problem["errors"] == [{"path": path, "message": TWICE}]
    expect_problem(wire.get("/experiments/new"), 404)


def test_every_other_body_gives_each_member_once(wire: Wire) -> None:
    for method, path, body, place in (
        ("PUT", "/policies/lints", '{"kind": "lints", "scale": 1, "scale": 2}', "scale"),
        ("PUT", "/arms/ball", '{"features": {"category": "toy", "category": "food"}}', None),
        ("POST", "/arms", '{"arms": {"a": {"category": "toy"}, "a": {}}}', "arms.a"),
        ("PUT", "/experiments/shop/policies/lints/share", '{"share": 1, "share": 0}', "share"),
        ("POST", "/import", '{"policy": "lints", "policy": "x", "visits": [{}]}', "policy"),
        ("POST", "/import", '{"policy": "lints", "visits": [], "visits": [{}]}', "visits"),
    ):
        problem = expect_problem(send(wire, method, path, body), 422)
        assert paths(problem) == [place or "features.category"]
        assert problem["detail"] == TWICE
    assert wire.definition()["policies"]["lints"]["share"] == 3.0


def test_each_visit_of_an_import_is_refused_for_itself(wire: Wire) -> None:
    def visit(id: str, more: str = "") -> str:
        context = '"context": {"persona": "cat"}'
        return f'{{"id": "{id}", "at": 0, {context}, "arm": "ball", "propensity": 1{more}}}'

    visits = [visit("1"), visit("2", ', "reward": 0, "reward": 1'), visit("3")]
    body = f'{{"policy": "lints", "skip_refused": true, "visits": [{", ".join(visits)}]}}'
    results: list[Json] = send(wire, "POST", "/import", body).json()["results"]
    assert [each["status"] for each in results] == [200, 422, 200]
    assert results[1]["problem"]["errors"] == [{"path": "reward", "message": TWICE}]


def test_many_repeated_members_under_a_long_name_are_told_in_few_words(wire: Wire) -> None:
    """As text, their paths would take gigabytes."""
    name = MARKER * 20_000
    members = ", ".join('"a": 1, "b": {}' for _ in range(20_000))
    answer = send(wire, "PUT", "/experiments/new", f'{{"{name}": {{{members}}}}}')
    problem = expect_problem(answer, 422)
    assert {each["message"] for each in problem["errors"]} == {TWICE}
    assert len(answer.content) < 2_000


def test_colons_and_defaults_in_a_body_are_no_fault(wire: Wire) -> None:
    question = {
        "experiment": "shop", "policy": None, "unit": "a:b", "context": {"persona": "cat"},
        "arms": ["ball", {"id": "x:y", "features": {"category": "toy", "brand": "::"}}, "kibble"],
        "top_k": 1, "deferred": False,
    }  # fmt: skip
    decision = wire.post("/select", question).json()
    assert wire.reward(decision, 1.0, reward_id=":", clicked=None) == "accepted"
