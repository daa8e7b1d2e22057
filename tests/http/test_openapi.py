"""The OpenAPI document is complete, and pinned in openapi.json.

That no route answers a status or content type that is not declared is seen in every test of this
folder: `tests.support.service.expect_declared` looks at each answer.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import forage_client
import pytest
from starlette.requests import Request

from service.http.request_head import PROBES
from service.http.web import openapi_route
from tests.support.service import Json, Wire, expect_problem, filled, openapi, short_forms

PINNED = Path(__file__).with_name("openapi.json")
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in openapi()["paths"].items()
    for method, operation in methods.items()
]
NAMES = [f"{method} {path}" for method, path, _ in OPERATIONS]


def test_the_document_is_the_pinned_one() -> None:
    assert json.loads(PINNED.read_text()) == openapi(), (
        "the wire has changed. If that is meant: run `make openapi`, look at the difference, "
        "and say it in CHANGELOG.md under 'The wire'"
    )


def test_the_service_tells_the_document(wire: Wire) -> None:
    wire.app.openapi_schema = None  # it makes its own
    assert wire.get("/openapi.json").json() == openapi()
    assert "/openapi.json" in wire.get("/docs/").text
    ids = Counter(operation["operationId"] for _, _, operation in OPERATIONS)
    assert ids.most_common(1)[0][1] == 1


def test_operations_have_names_that_a_person_would_give() -> None:
    """Those of generated clients: a verb and what it is done to, without the path and the method.
    FastAPI's own is `get_arm_experiments__experiment__arms__arm__get`."""
    for method, path, operation in OPERATIONS:
        name = operation["operationId"]
        assert re.fullmatch(r"[a-z]+(_[a-z]+){0,2}", name), f"{method} {path}: {name}"
        assert not name.endswith(f"_{method.lower()}"), name


def test_a_generated_client_is_not_called_as_ours() -> None:
    title = openapi()["info"]["title"]
    assert title.lower().replace(" ", "_") + "_client" != forage_client.__name__


def test_each_operation_is_described_once() -> None:
    """The short forms answer, and stand in the description alone."""
    served = {
        (method, path)
        for path, methods in short_forms().items()
        for method in methods
        if path not in openapi()["paths"]
    }
    assert ("get", "/arms") in served
    assert ("post", "/policies/{policy}/reset") in served
    assert len(served) == 11
    described = openapi()["info"]["description"]
    assert all(f"`/{form}`" in described for form in ("arms", "policies", "import"))


def test_the_forms_of_a_reward_have_titles() -> None:
    forms = openapi()["components"]["schemas"]["RewardRequest"]["oneOf"]
    assert [each["title"] for each in forms] == ["RewardOfOneArm", "RewardsByArm", "Cascade"]


def test_requests_at_once_wait_for_one_document() -> None:
    app = mock.Mock()
    app.openapi.return_value = {"openapi": "3.1.0"}
    respond = openapi_route(app).endpoint

    async def ask() -> list[bytes]:
        answers = await asyncio.gather(*(respond(Request({"type": "http"})) for _ in range(5)))
        return [answer.body for answer in answers]

    assert asyncio.run(ask()) == [b'{"openapi":"3.1.0"}'] * 5
    assert app.openapi.call_count == 1


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_an_operation_says_what_it_does_and_how_it_fails(
    method: str, path: str, operation: Json
) -> None:
    assert operation["summary"]
    assert operation["description"].endswith(".")
    assert len(operation["tags"]) == 1
    for status, response in operation["responses"].items():
        assert response["description"]
        if int(status) >= 400 and path not in PROBES:  # their body is the same
            [content] = response["content"].items()
            problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
            assert content == ("application/problem+json", problem)
        elif "application/json" in response.get("content", {}):  # every answer is a named schema
            schema = response["content"]["application/json"]["schema"]
            assert schema["$ref"].startswith("#/components/schemas/")


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere() -> None:
    for reference in set(references(openapi())):
        node: Any = openapi()
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        assert node


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_every_error_has_one_shape(wire: Wire, method: str, path: str, operation: Json) -> None:
    """Nonsense for a body and unknown names: the client of these tests looks at each answer."""
    unknown = filled(path, "unknown")
    json_type = {"Content-Type": "application/json"}
    found_anyway = path == "/units/{unit}"  # whoever is not known is gone already
    if "{" in path and method in ("GET", "DELETE") and not found_anyway:
        expect_problem(wire.request(method, unknown), 404)
    if "{experiment}" in path:
        bad = filled(path, "-")
        expect_problem(wire.request(method, bad, json={}), 422)
    if "requestBody" in operation and not path.endswith("/versions"):
        shop = filled(path, "shop")
        expect_problem(wire.request(method, shop, content=b"{", headers=json_type), 400)
        expect_problem(wire.request(method, shop, json=[]), 422)


def test_the_document_is_made_once(wire: Wire) -> None:
    """To make it takes half a second, and anybody may ask for it."""
    with mock.patch.object(wire.app, "openapi", return_value=openapi()) as make:
        answers = [wire.get("/openapi.json") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert make.call_count == 1
