"""Bodies that are not what they should be: never a 500, never an echo, always one shape."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.definition.experiment import NAME
from service.http.beacon import BYTES
from tests.support.plug import Plug, head
from tests.support.properties import examples
from tests.support.service import Wire, expect_problem, filled, paths, serving

JSON = {"Content-Type": "application/json"}
BODIES = [
    ("POST", "/select"),
    ("POST", "/reward"),
    ("POST", "/select/batch"),
    ("POST", "/reward/batch"),
    ("PUT", "/experiments/new"),
    ("POST", "/arms"),
    ("PUT", "/arms/rope"),
]
MARKER = "SECRETVALUE"
HALF = "\\ud800"  # of a surrogate pair, as JSON writes it


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """One for all: nothing here changes it."""
    with serving() as wire:
        yield wire


def send(wire: Wire, method: str, path: str, body: bytes | str) -> Any:
    return wire.request(method, path, content=body, headers=JSON)


@pytest.mark.parametrize(("method", "path"), BODIES)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"context": ', id="cut short"),
        pytest.param(b"{'context': {}}", id="single quotes"),
        pytest.param(b"context=SECRETVALUE", id="a form"),
        pytest.param(b'{"context": {}} SECRETVALUE', id="more than one"),
        pytest.param(b'{"context": {"persona": "\xff\xfe"}}', id="not UTF-8"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="nested deep"),
        pytest.param(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, id="nested deep objects"),
    ],
)
def test_what_is_not_json_is_malformed(wire: Wire, method: str, path: str, body: bytes) -> None:
    answer = send(wire, method, path, body)
    assert expect_problem(answer, 400)["type"].endswith("/malformed-json")
    assert MARKER not in answer.text


@pytest.mark.parametrize("path", ["/select", "/reward"])
@pytest.mark.parametrize("value", ["NaN", "-Infinity", f'"{HALF}"', f'{{"{HALF}": 1}}'])
def test_values_that_json_does_not_have_are_malformed(wire: Wire, path: str, value: str) -> None:
    member = "context" if path == "/select" else "rewards"
    for body in (f'{{"{member}": {value}}}', f'{{"{member}": {{"a": {value}}}}}'):
        answer = send(wire, "POST", path, body)
        assert expect_problem(answer, 400)["type"].endswith("/malformed-json")


def test_an_integer_of_any_length_is_a_problem(wire: Wire) -> None:
    for method, path in BODIES:
        answer = send(wire, method, path, '{"top_k": ' + "9" * 5_000 + "}")
        expect_problem(answer, 422 if path in ("/select", "/reward") else answer.status_code)
        assert answer.status_code in (400, 422)


@pytest.mark.parametrize(("method", "path"), BODIES)
@pytest.mark.parametrize("body", ["null", "[]", '"SECRETVALUE"', "7", "true", "1e999", ""])
def test_what_is_no_object_is_invalid(wire: Wire, method: str, path: str, body: str) -> None:
    answer = send(wire, method, path, body)
    assert expect_problem(answer, 422)["type"].endswith("/invalid")
    assert MARKER not in answer.text


@pytest.mark.parametrize(("method", "path"), BODIES)
def test_a_body_has_to_say_that_it_is_json(wire: Wire, method: str, path: str) -> None:
    answer = wire.request(method, path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert "Content-Type: application/json" in expect_problem(answer, 422)["detail"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('"colour": "SECRETVALUE"', "colour"),
        ('"experiment": 7', "experiment"),
        ('"experiment": "SECRET VALUE"', "experiment"),
        ('"policy": ["SECRETVALUE"]', "policy"),
        ('"unit": 7', "unit"),
        ('"unit": ""', "unit"),
        (f'"unit": "{"SECRETVALUE" * 30}"', "unit"),
        ('"context": "SECRETVALUE"', "context"),
        ('"context": ["SECRETVALUE"]', "context"),
        ('"context": null', "context"),
        ('"context": {"persona": null}', "context.persona"),
        ('"context": {"persona": {"SECRETVALUE": 1}}', "context.persona"),
        ('"context": {"persona": ["SECRETVALUE"]}', "context.persona.0"),
        (f'"context": {{"persona": "{"SECRETVALUE" * 30}"}}', "context.persona"),
        ('"context": {"age": 1e999}', "context.age"),
        ('"context": {"age": [1, 1e999]}', "context.age.1"),
        (f'"context": {{"age": {"9" * 400}}}', "context.age"),
        ('"arms": []', "arms"),
        ('"arms": "kibble"', "arms"),
        ('"arms": [7]', "arms.0"),
        ('"arms": [""]', "arms.0"),
        ('"arms": ["kibble", {"features": {}}]', "arms.1.id"),
        ('"arms": ["kibble", {"id": "a", "SECRET": 1}]', "arms.1.SECRET"),
        ('"arms": ["kibble", {"id": "a", "features": {"b": 1e999}}]', "arms.1.features.b"),
        ('"top_k": 0', "top_k"),
        ('"top_k": -1', "top_k"),
        ('"top_k": "2"', "top_k"),
        ('"top_k": true', "top_k"),
        ('"top_k": 1.5', "top_k"),
        ('"top_k": 1e999', "top_k"),
        ('"top_k": null', "top_k"),
    ],
)
def test_a_decision_is_refused_with_the_path_of_the_fault(
    wire: Wire, body: str, where: str
) -> None:
    answer = send(wire, "POST", "/select", "{" + body + "}")
    assert paths(expect_problem(answer, 422)) == [where]
    assert MARKER not in answer.text
    batch = send(wire, "POST", "/select/batch", '{"requests": [{}, {' + body + "}]}")
    assert paths(expect_problem(batch, 422)) == [f"requests.1.{where}"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('"reward": "1"', "reward"),
        ('"reward": true', "reward"),
        ('"reward": 1e999', "reward"),
        (f'"reward": {"9" * 400}', "reward"),
        ('"reward": [1]', "reward"),
        ('"rewards": {"kibble": "1"}', "rewards.kibble"),
        ('"rewards": {"": 1}', "rewards"),
        ('"rewards": ["kibble"]', "rewards"),
        ('"reward": 1, "reward_id": 7', "reward_id"),
        ('"reward": 1, "reward_id": null', "reward_id"),
        (f'"reward": 1, "reward_id": "{"SECRETVALUE" * 30}"', "reward_id"),
        ('"reward": 1, "SECRET": "SECRETVALUE"', "SECRET"),
        ('"feedback": "SECRETVALUE"', "feedback"),
        ('"feedback": "cascade", "clicked": 7', "clicked"),
        ('"decision_id": 7, "reward": 1', "decision_id"),
        ('"decision_id": null, "reward": 1', "decision_id"),
        (f'"decision_id": "{"SECRETVALUE" * 100}", "reward": 1', "decision_id"),
    ],
)
def test_a_reward_is_refused_with_the_path_of_the_fault(wire: Wire, body: str, where: str) -> None:
    decision = wire.select()
    whole = f'{{"decision_id": "{decision["decision_id"]}", {body}}}'
    answer = send(wire, "POST", "/reward", whole)
    assert paths(expect_problem(answer, 422)) == [where]
    assert MARKER not in answer.text
    assert decision["decision_id"] not in answer.text


@pytest.mark.parametrize(
    ("path", "body", "where", "message"),
    [
        ("/select", '{"colour": 1}', "colour", "is unknown: leave it out"),
        ("/select", '{"experiment": "a b"}', "experiment", f"must match {NAME}"),
        ("/select", '{"experiment": "shop\\n"}', "experiment", f"must match {NAME}"),
        ("/select", '{"unit": ""}', "unit", "must have at least 1 character"),
        ("/select", '{"arms": []}', "arms", "must have at least 1 item"),
        ("/select", '{"arms": [{}]}', "arms.0.id", "is required"),
        ("/select", '{"arms": [7]}', "arms.0", "must be a string or an object"),
        ("/select", '{"top_k": 0}', "top_k", "must be an integer of at least 1"),
        ("/select", '{"context": {"a": 1, "b.c": null}}', "context.b.c",
         "must be a boolean, a number, a string or a list"),
        ("/select", '{"context": {"a": [1, true]}}', "context.a.1", "must be a number"),
        ("/reward", '{"decision_id": "x", "reward": 1e999}', "reward",
         "must be a finite number of 64 bits"),
        ("/reward", '{"decision_id": "x"}', "", "give one of reward, rewards and feedback"),
        ("/reward", '{"decision_id": "x", "reward": 1, "clicked": "a"}', "",
         "clicked goes with feedback"),
        ("/reward", '{"decision_id": "x", "feedback": "no"}', "feedback", 'must be "cascade"'),
    ],
)  # fmt: skip
def test_a_fault_says_what_is_allowed(
    wire: Wire, path: str, body: str, where: str, message: str
) -> None:
    problem = expect_problem(send(wire, "POST", path, body), 422)
    assert problem["errors"] == [{"path": where, "message": message}]
    assert problem["detail"] == message


@pytest.mark.parametrize(
    "name",
    ["x` - at `$.arms[0]", "x` - at `$.context[...]", "x` - at `key` in `$.rewards", "`", ""],
)
def test_an_unknown_field_may_look_like_the_place_of_a_fault(wire: Wire, name: str) -> None:
    body = json.dumps({name: 1, "context": [], "arms": 1})
    expect_problem(send(wire, "POST", "/select", body), 422)


@pytest.mark.parametrize("key", ["a\\u0000", "\\u202e", "a" * 5_000, "<script>", ""])
def test_a_key_is_told_short_and_whole(wire: Wire, key: str) -> None:
    """The path of a fault holds the caller's own key: never so that the answer cannot be sent."""
    body = f'{{"context": {{"persona": "cat", "{key}": 1}}}}'
    problem = expect_problem(send(wire, "POST", "/select", body), 422)
    [where] = paths(problem)
    assert where.startswith("context.")
    assert len(where) <= 200


DEPTHS = [900, 20_000, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 1_100, 200_000))]
NESTED = ["[", '{"a":', '{"context":', '{"requests":[', '{"rewards":[', '{"context":{"persona":[']


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("opening", NESTED)
def test_no_depth_of_a_body_is_a_fault_of_the_service(wire: Wire, opening: str, depth: int) -> None:
    """On every route: unclosed, and closed."""
    open_ended = opening + "[" * depth
    pairs = {"[": "]", "{": "}"}
    closed = open_ended + "".join(pairs[each] for each in reversed(open_ended) if each in pairs)
    asked = [
        (method.upper(), filled(path, "shop"))
        for path, methods in wire.app.openapi()["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation and not path.endswith("/versions")
    ]
    assert len(asked) > 10
    for method, path in asked:
        for body in (open_ended, closed):
            answer = send(wire, method, path, body)
            expect_problem(answer, answer.status_code)
            assert answer.status_code in refusals(depth, closed=body is closed)
    for body in (open_ended, closed):
        answer = beacon(wire, body)
        if answer.status_code == 200:  # one item, refused for itself
            assert answer.json()["statuses"] in ([400], [422])
        else:
            expect_problem(answer, answer.status_code)
            allowed = {413} if len(body) > BYTES else {400, 422}
            assert answer.status_code in allowed


def refusals(depth: int, *, closed: bool) -> set[int]:
    """The statuses that may refuse such a body.

    Python's parser stops at the depth that the stack of its caller leaves it: near the limit of
    1,000 frames, both are right.
    """
    if not closed or depth > 1_000:
        return {400}
    return {422} if depth < 500 else {400, 422}


def beacon(wire: Wire, body: str) -> httpx.Response:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(wire.app), base_url="http://forage")
    return wire.run(client.post("/beacon", content=body))


LENGTHS = [b"0" * 5_000 + b"5", b"9" * 5_000, b"9" * 19, b"18446744073709551616"]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("path", ["/select", "/arms", "/beacon", "/nothing"])
def test_no_length_is_a_fault_of_the_service(wire: Wire, path: str, length: bytes) -> None:
    """On both ways in."""
    for more in (b"", b"X-More: 1\r\n"):
        plug = Plug(wire)
        request = head(path, 5, JSON).replace(b"Content-Length: 5", b"Content-Length: " + length)
        plug.send(request.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n") + b"12345")
        assert plug.receive().status_code in (400, 404, 413)


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = (
    *("context", "arms", "policy", "unit", "top_k", "decision_id", "reward", "rewards", "requests"),
    *("features", "policies", "crosses", "persona", "age", "id", "kind", "linucb", "values"),
)
keys = st.sampled_from(KEYS)
shaped = st.recursive(
    documents,
    lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(route=st.sampled_from(BODIES), document=shaped)
def test_no_body_is_a_fault_of_the_service(
    wire: Wire, route: tuple[str, str], document: object
) -> None:
    answer = send(wire, *route, json.dumps(document))
    assert answer.status_code < 500
