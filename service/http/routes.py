"""Decisions that were made, and how the service is."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service import __version__
from service.definition.experiment import Name
from service.http.schemas import (
    ActivationAnswer,
    DecisionAnswer,
    Health,
    Readiness,
)
from service.http.scope import CALLER
from service.http.services import Services
from service.http.writing import written
from service.security.access import Caller, Grant, granted
from service.serving.explain import explain


async def services(request: Request) -> Services:  # a plain def would cost a thread
    found: Services = request.app.state.services
    return found


Core = Annotated[Services, Depends(services)]


async def grant(request: Request) -> Grant | None:
    """Of the caller's key; None: keys are off."""
    caller: Caller | None = request.scope.get(CALLER)
    return None if caller is None else caller.grant


Granted = Annotated[Grant | None, Depends(grant)]

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


@router.get(
    "/decisions/{id}", tags=["decide"], responses=problems(404, 503), response_model=DecisionAnswer
)
async def decision(
    id: str, core: Core, grant: Granted, experiment: Annotated[Name | None, Query()] = None
) -> Response:
    """What was decided, and why."""
    found = await explain(core.journal, core.store, id, experiment, grant)
    return Response(await written(found, "candidates"), media_type="application/json")


@router.post("/decisions/{id}/activate", tags=["decide"], responses=problems(404, 409, 410, 503))
async def activate(
    id: str, core: Core, grant: Granted, experiment: Annotated[Name | None, Query()] = None
) -> ActivationAnswer:
    """Say that a deferred decision was shown: from now on it is learned from, and its default
    reward holds at `reward_by`. The same call again changes nothing."""
    return ActivationAnswer(status=await core.settlements.activate(id, experiment, grant))


@router.get("/healthz", tags=["operate"])
async def healthz(core: Core) -> Health:
    """The process is alive, and what its log promises."""
    return Health(
        status="degraded" if core.journal.degraded else "ok",
        version=__version__,
        store=core.settings.store.partition("://")[0],
        durability=core.store.durability,
        quarantined=len(core.journal.quarantined),
    )


@router.get("/readyz", tags=["operate"], responses={503: {"model": Readiness}})
async def readyz(core: Core, grant: Granted, response: Response) -> Readiness:
    """Ready: folded to the log's end, and the log can be written."""
    ready = not (core.journal.degraded or core.journal.behind)
    if not ready:
        response.status_code = 503
    states = core.journal.states.items()
    positions = {name: state.position for name, state in states if granted(grant, name)}
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
