"""What the OpenAPI document says of the routes that `decisions.py` serves.

FastAPI writes the document from these functions and never calls them.
"""

from typing import Annotated

from fastapi import APIRouter, Header

from service.http.routes import problems
from service.http.schemas import (
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

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="The same key gives the same decision, as long as its row is in the log: a "
        "request can be repeated. With another request it is refused (409).",
    ),
]


@router.post("/select", tags=["decide"], responses=problems(400, 404, 409, 503))
async def select(body: SelectBody, key: Key = None) -> SelectAnswer:  # type: ignore[empty-body]
    """Choose which arm to show. The answer's propensity is the chance with which it was chosen."""


@router.post("/reward", tags=["decide"], responses=problems(400, 404, 409, 410, 503))
async def reward(body: RewardBody) -> RewardAnswer:  # type: ignore[empty-body]
    """Say what came of a decision. Answered once durable; the same call again changes nothing."""


@router.post("/select/batch", tags=["decide"], responses=problems(400))
async def select_batch(body: SelectBatchBody) -> SelectBatchAnswer:  # type: ignore[empty-body]
    """Several decisions at once; each is answered or refused for itself."""


@router.post("/reward/batch", tags=["decide"], responses=problems(400))
async def reward_batch(body: RewardBatchBody) -> RewardBatchAnswer:  # type: ignore[empty-body]
    """Several rewards at once; each is accepted or refused for itself."""
