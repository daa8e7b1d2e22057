"""Bodies that are not what they should be: never a 500, never an echo, always one shape."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.features.declaration import NAME_RULE
from service.http.beacon import BYTES
from tests.support.plug import Plug, head
from tests.support.properties import examples
from tests.support.service import Wire, expect_problem, filled, paths, served_paths, serving

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


NOT_JSON = {
    "cut short": b'{"context": ',
    "single quotes": b"{'context': {}}",
    "a form": b"context=SECRETVALUE",
    "more than one": b'{"context": {}} SECRETVALUE',
    "not UTF-8": b'{"context": {"persona": "\xff\xfe"}}',
    "nested deep": b"[" * 100_000 + b"]" * 100_000,
    "nested deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
}


@pytest.mark.parametrize(("method", "path"), BODIES)
def test_a_body_is_one_json_object(wire: Wire, method: str, path: str) -> None:
    for name, body in NOT_JSON.items():
        answer = send(wire, method, path, body)
        assert expect_problem(answer, 400)["type"].endswith("/malformed-json"), name
        assert MARKER not in answer.text
    for other in ("null", "[]", '"SECRETVALUE"', "7", "true", "1e999", ""):
        answer = send(wire, method, path, other)
        assert expect_problem(answer, 422)["type"].endswith("/invalid"), other
        assert MARKER not in answer.text
    answer = wire.request(method, path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert "Content-Type: application/json" in expect_problem(answer, 422)["detail"]
    answer = send(wire, method, path, '{"top_k": ' + "9" * 5_000 + "}")
    expect_problem(answer, 422 if path in ("/select", "/reward") else answer.status_code)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", f'"{HALF}"', f'{{"{HALF}": 1}}'])
def test_values_that_json_does_not_have_are_malformed(wire: Wire, value: str) -> None:
    for path, member in (("/select", "context"), ("/reward", "rewards")):
        for body in (f'{{"{member}": {value}}}', f'{{"{member}": {{"a": {value}}}}}'):
            answer = send(wire, "POST", path, body)
            assert expect_problem(answer, 400)["type"].endswith("/malformed-json")


LONG = f'"{"SECRETVALUE" * 30}"'
DECISION_FAULTS = {
    "colour": ['"SECRETVALUE"'],
    "experiment": ["7", '"SECRET VALUE"'],
    "policy": ['["SECRETVALUE"]'],
    "unit": ["7", '""', LONG],
    "context": ['"SECRETVALUE"', '["SECRETVALUE"]', "null"],
    "context.persona": ["null", '{"SECRETVALUE": 1}', LONG],
    "context.persona.0": ['["SECRETVALUE"]'],
    "context.age": ["1e999", "9" * 400],
    "context.age.1": ["[1, 1e999]"],
    "arms": ["[]", '"kibble"'],
    "arms.0": ["[7]", '[""]'],
    "arms.1.id": ['["kibble", {"features": {}}]'],
    "arms.1.SECRET": ['["kibble", {"id": "a", "SECRET": 1}]'],
    "arms.1.features.b": ['["kibble", {"id": "a", "features": {"b": 1e999}}]'],
    "top_k": ["0", "-1", '"2"', "true", "1.5", "1e999", "null"],
}


@pytest.mark.parametrize("where", DECISION_FAULTS)
def test_a_decision_is_refused_with_the_path_of_the_fault(wire: Wire, where: str) -> None:
    for value in DECISION_FAULTS[where]:
        member, _, inner = where.partition(".")
        nested = member == "context" and inner
        name = inner.partition(".")[0] if nested else member
        fault = f'"{name}": {value}'
        body = f'"context": {{{fault}}}' if nested else fault
        answer = send(wire, "POST", "/select", "{" + body + "}")
        assert paths(expect_problem(answer, 422)) == [where]
        assert MARKER not in answer.text
        batch = send(wire, "POST", "/select/batch", '{"requests": [{' + body + "}]}")
        [item] = batch.json()["results"]
        assert (item["status"], paths(item["problem"])) == (422, [where])
        assert MARKER not in batch.text


REWARD_FAULTS = {
    "reward": ['"reward": "1"', '"reward": true', '"reward": 1e999', f'"reward": {"9" * 400}',
               '"reward": [1]'],
    "rewards.kibble": ['"rewards": {"kibble": "1"}'],
    "rewards": ['"rewards": {"": 1}', '"rewards": ["kibble"]'],
    "reward_id": [f'"reward": 1, "reward_id": {value}' for value in ("7", "null", LONG)],
    "SECRET": ['"reward": 1, "SECRET": "SECRETVALUE"'],
    "feedback": ['"feedback": "SECRETVALUE"'],
    "clicked": ['"feedback": "cascade", "clicked": 7'],
    "decision_id": [f'"decision_id": {value}, "reward": 1' for value in (
        "7", "null", f'"{"SECRETVALUE" * 100}"')],
}  # fmt: skip


@pytest.mark.parametrize("where", REWARD_FAULTS)
def test_a_reward_is_refused_with_the_path_of_the_fault(wire: Wire, where: str) -> None:
    token = wire.select()["decision_id"]
    for body in REWARD_FAULTS[where]:
        answer = send(wire, "POST", "/reward", f'{{"decision_id": "{token}", {body}}}')
        assert paths(expect_problem(answer, 422)) == [where]
        assert MARKER not in answer.text
        assert token not in answer.text


@pytest.mark.parametrize(
    ("path", "body", "where", "message"),
    [
        ("/select", '{"topk": 1}', "topk", "is unknown; did you mean 'top_k'?"),
        ("/select", '{"colour": 1}', "colour", "is unknown; there are: 'context', 'experiment', "
         "'policy', 'unit', 'arms', 'exclude', 'only', 'top_k' and 1 more"),
        ("/select", '{"arms": [{"id": "a", "feature": {}}]}', "arms.0.feature",
         "is unknown; did you mean 'features'?"),
        ("/select/batch", '{"request": []}', "request", "is unknown; did you mean 'requests'?"),
        ("/reward", '{"reward-id": "a"}', "reward-id", "is unknown; did you mean 'reward_id'?"),
        ("/arms", '{"arms": {"a": {}}, "arm": {}}', "arm", "is unknown; did you mean 'arms'?"),
        ("/select", '{"experiment": "a b"}', "experiment", NAME_RULE),
        ("/select", '{"experiment": "shop\\n"}', "experiment", NAME_RULE),
        ("/select", '{"unit": ""}', "unit", "must have at least 1 character"),
        ("/select", '{"arms": []}', "arms", "must have at least 1 item"),
        ("/select", '{"arms": [{}]}', "arms.0.id", "is required"),
        ("/select", '{"arms": [7]}', "arms.0", "must be a string or an object"),
        ("/select", '{"top_k": 0}', "top_k", "must be an integer of at least 1"),
        ("/select", '{"context": {"a": 1, "b.c": {}}}', "context.b.c",
         "must be a boolean, a number, a string, a list or null"),
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


TIME = "must be a time with its zone, as 2026-01-31T12:00:00Z, or unix seconds"
VISIT = {"id": "1", "at": 0, "arm": "kibble", "propensity": 1}
DEFINED = {"policies": {"p": {"kind": "random"}}}


def imported(**changes: Any) -> Any:
    return {"policy": "linucb", "visits": [{**VISIT, **changes}]}


def defined(**changes: Any) -> Any:
    return {**DEFINED, **changes}


@pytest.mark.parametrize(
    ("method", "path", "body", "where", "message"),
    [
        ("PUT", "/experiments/new", {"policies": {"p": {"kind": "linUCB"}}}, "policies.p.kind",
         "there is no such kind; did you mean 'linucb'?"),
        ("PUT", "/experiments/new", {"policies": {"p": {"kind": "best"}}}, "policies.p.kind",
         "there is no such kind; there are: 'auto', 'linucb', 'lints', 'neural_linear_ts', "
         "'neural_linucb', 'neural_ucb' and 10 more"),
        ("PUT", "/experiments/new", {"policies": {"p": {}}}, "policies.p.kind", "is required"),
        ("PUT", "/experiments/new", defined(features={"context": {"f": {}}}),
         "features.context.f.type", "is required"),
        ("PUT", "/experiments/new", {"policies": {}}, "policies", "must have at least 1 member"),
        ("PUT", "/experiments/new", defined(policies={"a b": {"kind": "random"}}),
         "policies.a b", NAME_RULE),
        ("PUT", "/experiments/new", defined(policy={}), "policy",
         "is unknown; did you mean 'policies'?"),
        ("PUT", "/experiments/new", defined(policies={"p": {"kind": "linucb", "alfa": 1}}),
         "policies.p.alfa", "is unknown; did you mean 'alpha'?"),
        ("PUT", "/experiments/new", defined(reward={"waits_seconds": 1}), "reward.waits_seconds",
         "is unknown; did you mean 'wait_seconds'?"),
        ("POST", "/import", imported(reword=1), "reword",
         "is unknown; did you mean 'reward'?"),
        ("PUT", "/experiments/new", defined(reward={"aggregation": "firts"}),
         "reward.aggregation", "must be 'first', 'sum' or 'last'; did you mean 'first'?"),
        ("PUT", "/experiments/new", defined(reward={"range": [0]}), "reward.range.1",
         "is required"),
        ("PUT", "/experiments/new", defined(max_vector="9"), "max_vector", "must be an integer"),
        ("PUT", "/experiments/new", defined(arms={"a": {"f": {}}}), "arms.a.f",
         "must be true or false, a number, a string or a list"),
        ("PUT", "/experiments/new", defined(arms={"a" * 257: {}}), f"arms.{'a' * 191} ...",
         "must have at most 256 characters"),
        ("PUT", f"/arms/{'a' * 257}", {}, "arm", "must have at most 256 characters"),
        ("PUT", "/experiments/a%20b", DEFINED, "experiment", NAME_RULE),
        ("POST", "/arms", {"arms": {}}, "arms", "must have at least 1 member"),
        ("POST", "/import", {"policy": "linucb", "visits": []}, "visits",
         "must have at least 1 item"),
        ("POST", "/import", imported(at="soon"), "at", TIME),
        ("POST", "/import", imported(at="2026-01-31T12:00:00"), "at", TIME),
        ("POST", "/import", imported(at=1e300), "at", TIME),
        ("POST", "/import", imported(arms=[]), "arms", "must have at least 1 item"),
        ("POST", "/import", imported(id="x" * 257), "id", "must have at most 256 characters"),
        ("POST", "/import", imported(propensity="1"), "propensity", "must be a number"),
        ("POST", "/import", imported(propensity=2), "propensity",
         "must be less than or equal to 1"),
        ("GET", "/nothing", None, None, "no route has this path: /docs lists those there are"),
        ("GET", "/select/x", None, None, "no route has this path: /docs lists those there are"),
        ("PATCH", "/arms", None, None,
         "no route of this path has this method: Allow lists those it has"),
    ],
)  # fmt: skip
def test_a_refusal_has_no_words_of_a_library(
    wire: Wire, method: str, path: str, body: Any, where: str | None, message: str
) -> None:
    answer = wire.request(method, path, json=body)
    if path == "/import" and answer.status_code == 200:
        [item] = answer.json()["results"]
        problem = item["problem"]
    else:
        problem = expect_problem(answer, answer.status_code)
    if where is None:
        assert problem["detail"] == message
    else:
        assert {"path": where, "message": message} in problem["errors"]


@pytest.mark.parametrize("path", ["/select", "/reward", "/select/batch"])
def test_half_of_a_pair_and_a_body_that_ends_too_early_are_told_apart(
    wire: Wire, path: str
) -> None:
    for body, say in (
        (f'{{"unit": "{HALF}"}}', "half of a surrogate pair is no character"),
        ('{"unit": "\\ud83d\\ude00', "the body ends too early"),
        ('{"unit": ', "the body ends too early"),
    ):
        if path.endswith("/batch"):
            body = f'{{"requests": [{body}' + ("]}" if body.endswith("}") else "")
        answer = send(wire, "POST", path, body)
        if answer.status_code == 200:
            [item] = answer.json()["results"]
            problem = item["problem"]
        else:
            problem = expect_problem(answer, 400)
        if answer.status_code == 200 or not path.endswith("/batch"):
            assert problem["detail"] == say


PLACES = ("x` - at `$.arms[0]", "x` - at `$.context[...]", "x` - at `key` in `$.rewards", "`", "")


def test_a_key_of_the_caller_is_told_short_and_whole(wire: Wire) -> None:
    """Also where it looks like the place of a fault, or cannot be sent back as it is."""
    for name in PLACES:
        body = json.dumps({name: 1, "context": [], "arms": 1})
        expect_problem(send(wire, "POST", "/select", body), 422)
    for key in ("a\\u0000", "\\u202e", "a" * 5_000, "<script>", ""):
        body = f'{{"context": {{"persona": "cat", "{key}": 1}}}}'
        [where] = paths(expect_problem(send(wire, "POST", "/select", body), 422))
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
        for path, methods in served_paths().items()
        for method, operation in methods.items()
        if "requestBody" in operation and not path.endswith("/versions")
    ]
    assert len(asked) > 10
    for method, path in asked:
        for body in (open_ended, closed):
            answer = send(wire, method, path, body)
            if "/batch" in path and answer.status_code == 200:
                assert {each["status"] for each in answer.json()["results"]} == {422}
                continue
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


@pytest.mark.parametrize("path", ["/select", "/arms", "/beacon", "/nothing"])
def test_no_length_is_a_fault_of_the_service(wire: Wire, path: str) -> None:
    for length in (b"0" * 5_000 + b"5", b"9" * 5_000, b"9" * 19, b"18446744073709551616"):
        plug = Plug(wire)
        request = head(path, 5, JSON).replace(b"Content-Length: 5", b"Content-Length: " + length)
        plug.send(request + b"12345")
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


LIBRARY = re.compile(r"Input|valid |Unable|Dictionary|String|List |pattern|\^\[|Error|truncated")


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(route=st.sampled_from([*BODIES, ("POST", "/import")]), document=shaped)
def test_no_refusal_of_any_body_has_words_of_a_library(
    wire: Wire, route: tuple[str, str], document: object
) -> None:
    answer = send(wire, *route, json.dumps(document))
    if answer.status_code == 422:
        messages = [fault["message"] for fault in answer.json()["errors"]]
        assert not any(map(LIBRARY.search, messages)), messages


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/experiments/new", f'{{"policies": {{}}, "arms": {{"{HALF}": {{}}}}}}'),
        ("POST", "/arms", f'{{"arms": {{"{HALF}": {{}}}}}}'),
        ("PUT", "/arms/rope", f'{{"features": {{"category": "{HALF}"}}}}'),
    ],
)
def test_half_of_a_surrogate_pair_is_malformed_and_a_whole_one_is_not(
    wire: Wire, method: str, path: str, body: str
) -> None:
    answer = send(wire, method, path, body)
    assert expect_problem(answer, 400)["type"].endswith("/malformed-json")
    whole = send(wire, method, path, body.replace(HALF, "\\ud83d\\ude00"))
    assert whole.status_code != 400
