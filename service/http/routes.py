"""The routes that decide and learn, and those that say how the service is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service import __version__
from service.access import granted
from service.errors import Invalid, Refused, StoreUnavailable
from service.experiment import Name
from service.explain import explain
from service.http.problems import problem_of
from service.http.schemas import (
    ActivationAnswer,
    DecisionAnswer,
    Health,
    Problem,
    Readiness,
    RewardAnswer,
    RewardBatchAnswer,
    RewardBatchBody,
    RewardBody,
    RewardItem,
    SelectAnswer,
    SelectBatchAnswer,
    SelectBatchBody,
    SelectBody,
    SelectItem,
)
from service.services import Services


async def services(request: Request) -> Services:  # a plain def would cost a thread
    found: Services = request.app.state.services
    return found


Asked = TypeVar("Asked")
Item = TypeVar("Item")
Core = Annotated[Services, Depends(services)]

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

MEANING = {
    400: "The body is not JSON.",
    404: "There is no such thing.",
    409: "The same identity was used with another value.",
    410: "The time for this has passed.",
    412: "Another revision than If-Match names.",
    413: "The body is too large.",
    422: "The request is not valid; `errors` says where.",
    503: "The log cannot be written: try again after `Retry-After` seconds.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's account of the errors a route can answer."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": MEANING[status], "content": content}
        for status in sorted({413, 422, *statuses})
    }


router = APIRouter()


@router.post("/select", tags=["decide"], responses=problems(400, 404, 409, 503))
async def select(body: SelectBody, core: Core, key: Key = None) -> SelectAnswer:
    """Choose which arm to show. The answer's propensity is the chance with which it was chosen."""
    with core.telemetry.stage("select"):
        return SelectAnswer.of(await core.engine.select(body.question(key)))


@router.post("/reward", tags=["decide"], responses=problems(400, 404, 409, 410, 503))
async def reward(body: RewardBody, core: Core) -> RewardAnswer:
    """Say what came of a decision. Answered once durable; the same call again changes nothing."""
    with core.telemetry.stage("reward"):
        return RewardAnswer(status=await core.settlements.reward(body.outcome()))


@router.post("/select/batch", tags=["decide"], responses=problems(400))
async def select_batch(body: SelectBatchBody, core: Core) -> SelectBatchAnswer:
    """Several decisions at once; each is answered or refused for itself."""

    async def one(request: SelectBody) -> SelectItem:
        return SelectItem(
            status=200, answer=SelectAnswer.of(await core.engine.select(request.question()))
        )

    return SelectBatchAnswer(
        results=await _each(
            core, body.requests, one, lambda p: SelectItem(status=p.status, problem=p)
        )
    )


@router.post("/reward/batch", tags=["decide"], responses=problems(400))
async def reward_batch(body: RewardBatchBody, core: Core) -> RewardBatchAnswer:
    """Several rewards at once; each is accepted or refused for itself."""

    async def one(request: RewardBody) -> RewardItem:
        status = await core.settlements.reward(request.outcome())
        return RewardItem(status=200, answer=RewardAnswer(status=status))

    return RewardBatchAnswer(
        results=await _each(
            core, body.requests, one, lambda p: RewardItem(status=p.status, problem=p)
        )
    )


async def _each(
    core: Services,
    requests: list[Asked],
    one: Callable[[Asked], Awaitable[Item]],
    refuse: Callable[[Problem], Item],
) -> list[Item]:
    """All at once, so that they share a commit of the log."""
    if len(requests) > core.settings.max_batch:
        raise Invalid(f"at most {core.settings.max_batch} requests", path="requests")
    core.access.charge(len(requests))

    async def guarded(request: Asked) -> Item:
        try:
            return await one(request)
        except (Refused, StoreUnavailable) as fault:
            return refuse(problem_of(fault))

    return list(await asyncio.gather(*(guarded(request) for request in requests)))


@router.get("/decisions/{id}", tags=["decide"], responses=problems(404, 503))
async def decision(
    id: str, core: Core, experiment: Annotated[Name | None, Query()] = None
) -> DecisionAnswer:
    """What was decided, and why."""
    return DecisionAnswer.model_validate(await explain(core.journal, id, experiment))


@router.post("/decisions/{id}/activate", tags=["decide"], responses=problems(404, 409, 410, 503))
async def activate(
    id: str, core: Core, experiment: Annotated[Name | None, Query()] = None
) -> ActivationAnswer:
    """Say that a deferred decision was shown: from now on it is learned from, and its default
    reward holds at `reward_by`. The same call again changes nothing."""
    return ActivationAnswer(status=await core.settlements.activate(id, experiment))


@router.get("/healthz", tags=["operate"])
async def healthz(core: Core) -> Health:
    """The process is alive, and what its log promises."""
    return Health(
        status="degraded" if core.journal.degraded else "ok",
        version=__version__,
        store=core.settings.store.partition("://")[0],
        durability=core.journal.store.durability,
    )


@router.get("/readyz", tags=["operate"], responses={503: {"model": Readiness}})
async def readyz(core: Core, response: Response) -> Readiness:
    """Ready: folded to the log's end, and the log can be written."""
    ready = not (core.journal.degraded or core.journal.behind)
    if not ready:
        response.status_code = 503
    states = core.journal.states.items()
    positions = {name: state.position for name, state in states if granted(name)}
    return Readiness(ready=ready, positions=positions)


@router.get(
    "/metrics",
    tags=["operate"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(core: Core) -> Response:
    """Prometheus text format."""
    return Response(core.telemetry.expose(), media_type=CONTENT_TYPE_LATEST)
