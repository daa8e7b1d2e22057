"""Routes of past decisions, and of the health of the service."""

import gzip
import re
from dataclasses import asdict
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service import __version__
from service.features.declaration import Name
from service.http.dependencies import GrantDep, ServicesDep
from service.http.openapi import problems
from service.http.schemas import ActivationAnswer, Health, Readiness, Recovering, Unready
from service.http.strict import StrictRoute
from service.observe.explain import DecisionAnswer, explain
from service.security.access import granted

GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?:,|$)", re.I)
"""Pattern of gzip in Accept-Encoding, unless its weight is 0."""

router = APIRouter(route_class=StrictRoute)


@router.get(
    "/decisions/{id}",
    tags=["decide"],
    responses=problems(404, 410, 503),
    response_model=DecisionAnswer,
)
async def get_decision(
    id: str,
    services: ServicesDep,
    grant: GrantDep,
    experiment: Annotated[Name | None, Query()] = None,
) -> Response:
    """Return what was decided, and why."""
    found = await explain(services.log, services.store, id, experiment, grant)
    return Response(found.model_dump_json(), media_type="application/json")


@router.post("/decisions/{id}/activate", tags=["decide"], responses=problems(404, 409, 410, 503))
async def activate(
    id: str,
    services: ServicesDep,
    grant: GrantDep,
    experiment: Annotated[Name | None, Query()] = None,
) -> ActivationAnswer:
    """Say that a deferred decision was shown: from now on it is learned from, and its default
    reward holds at `reward_by`. The same call again changes nothing."""
    return ActivationAnswer(status=await services.settlements.activate(id, experiment, grant))


@router.get("/healthz", tags=["operate"], responses={503: {"model": Health}})
async def get_health(services: ServicesDep, response: Response) -> Health:
    """Say that the process is alive, and what its log promises. 503: its store is damaged, and a
    restart or a person has to mend it; one that may come back by itself makes it `degraded`."""
    log = services.log
    if log.committer.hopeless:
        response.status_code = 503
    return Health(
        status="failed"
        if log.committer.hopeless
        else "degraded"
        if log.committer.degraded
        else "starting"
        if services.lifecycle.starting
        else "ok",
        version=__version__,
        store=services.settings.store.partition("://")[0],
        durability=services.store.durability,
        quarantined=len(log.replicas.quarantined),
    )


@router.get("/readyz", tags=["operate"], responses={503: {"model": Readiness}})
async def get_readiness(services: ServicesDep, grant: GrantDep, response: Response) -> Readiness:
    """Ready: folded to the log's end, the log can be written, and no signal has stopped it. An
    experiment in quarantine does not count, unless its log is lost and no other is left to
    serve."""
    log, lifecycle, states = services.log, services.lifecycle, services.log.replicas.states
    lost = any(each.position is None for each in log.replicas.quarantined.values())
    reasons: list[tuple[Unready, bool]] = [
        ("stopping", lifecycle.draining),
        ("starting", lifecycle.starting),
        ("degraded", log.committer.degraded),
        ("behind", log.behind),
        ("lost", lost and not states),
    ]
    reason = next((reason for reason, holds in reasons if holds), None)
    if reason is not None:
        response.status_code = 503
    progress = log.recovery.progress
    return Readiness(
        ready=reason is None,
        reason=reason,
        recovering=None
        if progress is None or not granted(grant, progress.experiment)
        else Recovering(**asdict(progress)),
        positions={name: each.position for name, each in states.items() if granted(grant, name)},
    )


@router.get(
    "/metrics",
    tags=["operate"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(request: Request, services: ServicesDep) -> Response:
    """Prometheus text format, of all workers, compressed where the caller accepts gzip."""
    text = await services.telemetry.expose(services.log.replicas.policies)
    headers = {"Vary": "Accept-Encoding"}
    if GZIP.search(request.headers.get("Accept-Encoding", "")):
        text, headers["Content-Encoding"] = gzip.compress(text, 1), "gzip"
    return Response(text, headers=headers, media_type=CONTENT_TYPE_LATEST)
