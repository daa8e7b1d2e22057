"""The route of an experiment's history."""

import math
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from service.errors import Invalid
from service.http.dependencies import PastStateDep, ServicesDep
from service.http.openapi import problems
from service.http.strict import StrictRoute
from service.observe.change_list import ChangeList, ChangePage, changes_of

router = APIRouter(tags=["observe"], route_class=StrictRoute)

LARGEST_NUMBER = 10**15
"""Largest number of a position or a revision: beyond any log."""


@router.get("/experiments/{experiment}/changes", responses=problems(400, 404, 503))
async def list_changes(
    state: PastStateDep,
    services: ServicesDep,
    at: Annotated[
        str | None,
        Query(
            max_length=64,
            description="What held then: an ISO time with its zone, or unix seconds.",
        ),
    ] = None,
    revision: Annotated[
        int | None,
        Query(ge=1, le=LARGEST_NUMBER, description="What held once this revision was made."),
    ] = None,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST_NUMBER, description="Changes before this position.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    notable: Annotated[
        bool,
        Query(
            description="Only what concerns what visitors are served: definitions, shares, "
            "resets, rollouts, versions that begin to serve, changes of the world."
        ),
    ] = False,
) -> ChangeList:
    """Return who changed what, newest first; with `at` or `revision` up to then, and what held."""
    if at is not None and revision is not None:
        raise Invalid("give this or `at`, not both", path="revision")
    instant = None if at is None else read_instant(at)
    page = ChangePage(limit, before, instant, revision, notable)
    return await changes_of(services.store, state, page)


def read_instant(text: str) -> float:
    """Read an ISO time with its zone, or unix seconds, as unix seconds. Raises Invalid."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _of_iso(text)
    if not math.isfinite(seconds):
        raise Invalid("is no instant: give unix seconds, or 2026-01-31T12:00:00Z", path="at")
    return seconds


def _of_iso(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.timestamp()
    except (ValueError, OverflowError) as fault:
        raise Invalid(
            "is no instant: give unix seconds, or 2026-01-31T12:00:00Z; write + as %2B", path="at"
        ) from fault
    raise Invalid("names no zone: end it with Z, or with an offset such as %2B01:00", path="at")
