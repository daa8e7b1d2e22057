"""The OpenAPI document: FastAPI's, with the routes of `decisions.py`, refusals and keys."""

from typing import Any, Final, NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.definition.reward_request import RewardRequest
from service.definition.select_request import SelectRequest
from service.http import access, bodies
from service.http.problems import MEDIA_TYPE
from service.http.schemas import Problem

MEANING = {
    400: "The body is not JSON.",
    404: "Not found.",
    409: "The request conflicts with what is recorded.",
    410: "Too late.",
    412: "The revision does not match `If-Match`.",
    413: "The body is too large.",
    415: "The body is compressed: send it without `Content-Encoding`.",
    422: "The request is not valid; `errors` says where.",
    429: "More requests than the rate of the key, or too many evaluations running: try again "
    "after `Retry-After` seconds.",
    504: "The caller's deadline passed before this was begun: nothing was changed.",
    503: "The service is starting, its log cannot be written, or too many requests are under way: "
    "try again after `Retry-After` seconds.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's account of the errors a route can answer."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": MEANING[status], "content": content}
        for status in sorted({413, 415, 422, *statuses})
    }


Json = dict[str, Any]


class Operation(NamedTuple):
    """A route of `decisions.py`."""

    path: str
    body: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    description: str
    statuses: tuple[int, ...]
    repeatable: bool = False


OPERATIONS: Final = (
    Operation(
        "/select", SelectRequest, bodies.SelectAnswer,
        "Choose which arm to show. The answer's propensity is the chance with which it was chosen.",
        (400, 404, 409, 503, 504), repeatable=True,
    ),
    Operation(
        "/reward", RewardRequest, bodies.RewardAnswer,
        "Say what came of a decision. Answered once durable; the same call again changes nothing.",
        (400, 404, 409, 410, 503, 504),
    ),
    Operation(
        "/select/batch", bodies.SelectBatchBody, bodies.SelectBatchAnswer,
        "Several decisions at once; each is answered or refused for itself.", (400, 503, 504),
    ),
    Operation(
        "/reward/batch", bodies.RewardBatchBody, bodies.RewardBatchAnswer,
        "Several rewards at once; each is accepted or refused for itself.", (400, 503, 504),
    ),
)  # fmt: skip
KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    "description": "The same key gives the same decision, as long as its row is in the log: a "
    "request can be repeated. With another request it is refused (409).",
}
TIMEOUT_PARAMETER: Final = {
    "name": "X-Envoy-Expected-Rq-Timeout-Ms",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Milliseconds that the caller waits, as proxies send it: a request that is not "
    "begun by then is answered 504, and changes nothing.",
}


def _reference(kind: type) -> Json:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _content(struct: type[msgspec.Struct]) -> Json:
    return {"application/json": {"schema": _reference(struct)}}


def _described(operation: Operation) -> Json:
    responses: dict[int | str, Json] = {
        200: {
            "description": "Successful Response",
            "content": _content(operation.answer),
        }
    }
    responses |= problems(*operation.statuses)
    name = operation.path.strip("/").replace("/", "_")
    return {
        "tags": ["decide"],
        "summary": name.replace("_", " ").title(),
        "description": operation.description,
        "operationId": name,
        "parameters": [*([KEY] if operation.repeatable else []), TIMEOUT_PARAMETER],
        "requestBody": {
            "required": True,
            "content": _content(operation.body),
        },
        "responses": {str(status): response for status, response in responses.items()},
    }


def _schemas() -> Json:
    """Return the schemas of the bodies and answers that msgspec reads and writes."""
    structs = [each for operation in OPERATIONS for each in (operation.body, operation.answer)]
    _, found = msgspec.json.schema_components(
        structs,
        ref_template="#/components/schemas/{name}",
        schema_hook=_reference,  # of the pydantic model of a problem
    )
    found["SelectRequest"]["examples"] = [
        {"experiment": "zooplus", "context": {"persona": "new_puppy_parent"}}
    ]
    found["RewardRequest"]["oneOf"] = bodies.FORMS
    return found


def document(app: FastAPI, required: bool) -> dict[str, Any]:
    """Make the OpenAPI document, once."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        decided = {each.path: {"post": _described(each)} for each in OPERATIONS}
        found["paths"] = decided | found["paths"]
        schemas = found["components"]["schemas"]
        schemas |= _schemas()
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas["Problem"].pop("$defs", None)
        found["components"]["schemas"] = dict(sorted(schemas.items()))
        access.declare(found, required=required)
        app.openapi_schema = found
    return app.openapi_schema
