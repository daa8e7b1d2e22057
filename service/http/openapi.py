"""The OpenAPI document: what routes can refuse, keys, and the routes that `decisions.py` serves."""

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header
from fastapi.openapi.utils import get_openapi

from service.http import access
from service.http.problems import MEDIA_TYPE
from service.http.schemas import (
    Problem,
    RewardAnswer,
    RewardBatchAnswer,
    RewardBatchBody,
    RewardBody,
    SelectAnswer,
    SelectBatchAnswer,
    SelectBatchBody,
    SelectBody,
)

router = APIRouter()
"""FastAPI describes these functions in the document and never calls them."""

MEANING = {
    400: "The body is not JSON.",
    404: "There is no such thing.",
    409: "The same identity was used with another value.",
    410: "The time for this has passed.",
    412: "Another revision than If-Match names.",
    413: "The body is too large.",
    422: "The request is not valid; `errors` says where.",
    504: "The caller's time was over before this was begun: nothing was changed.",
    503: "The log cannot be written, or too many requests are under way: try again after "
    "`Retry-After` seconds.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's account of the errors a route can answer."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": MEANING[status], "content": content}
        for status in sorted({413, 422, *statuses})
    }


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="The same key gives the same decision, as long as its row is in the log: a "
        "request can be repeated. With another request it is refused (409).",
    ),
]


Timeout = Annotated[
    str | None,
    Header(
        alias="X-Envoy-Expected-Rq-Timeout-Ms",
        description="Milliseconds that the caller waits, as proxies send it: what is not begun by "
        "then is answered 504, and changes nothing.",
    ),
]


@router.post("/select", tags=["decide"], responses=problems(400, 404, 409, 503, 504))
async def select(  # type: ignore[empty-body]
    body: SelectBody, key: IdempotencyKey = None, wait: Timeout = None
) -> SelectAnswer:
    """Choose which arm to show. The answer's propensity is the chance with which it was chosen."""


@router.post("/reward", tags=["decide"], responses=problems(400, 404, 409, 410, 503, 504))
async def reward(body: RewardBody, wait: Timeout = None) -> RewardAnswer:  # type: ignore[empty-body]
    """Say what came of a decision. Answered once durable; the same call again changes nothing."""


@router.post("/select/batch", tags=["decide"], responses=problems(400, 503, 504))
async def select_batch(body: SelectBatchBody, wait: Timeout = None) -> SelectBatchAnswer:  # type: ignore[empty-body]
    """Several decisions at once; each is answered or refused for itself."""


@router.post("/reward/batch", tags=["decide"], responses=problems(400, 503, 504))
async def reward_batch(body: RewardBatchBody, wait: Timeout = None) -> RewardBatchAnswer:  # type: ignore[empty-body]
    """Several rewards at once; each is accepted or refused for itself."""


def document(app: FastAPI, required: bool) -> dict[str, Any]:
    """The OpenAPI document, with the one shape of errors in place of FastAPI's own, and keys."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = found["components"]["schemas"]
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas["Problem"].pop("$defs", None)
        access.declare(found, required=required)
        app.openapi_schema = found
    return app.openapi_schema
