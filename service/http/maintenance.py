"""Routes of maintenance: erasure of a unit, skips of events, readers that trimming waits for."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from service.definition.experiment import UnitId
from service.errors import Invalid
from service.features.declaration import Name
from service.http.dependencies import AuthorDep, GrantDep, GrantedName, ServicesDep, StateDep
from service.http.openapi import problems
from service.http.schemas import Body
from service.http.strict import StrictRoute
from service.log.stores.base import ReaderPosition
from service.manage.erasure import ErasedCount
from service.security.access import expect_granted
from service.telemetry.logs import log_change

router = APIRouter(tags=["operate"], route_class=StrictRoute)


LARGEST_POSITION = 2**63 - 1
"""Largest position or row number of any store."""


class ErasureAnswer(BaseModel):
    erased: dict[str, ErasedCount] = Field(description="Counts by experiment.")


class ReaderBody(Body):
    position: int = Field(
        ge=0, le=LARGEST_POSITION, description="Events up to this position have been taken."
    )
    row: int = Field(
        ge=0, le=LARGEST_POSITION, description="Decision rows up to this number have been taken."
    )


class ReaderList(BaseModel):
    readers: dict[str, ReaderBody]


@router.delete("/units/{unit:id}", responses=problems(404, 409, 503))
async def erase_unit(
    unit: Annotated[UnitId, Path()],
    services: ServicesDep,
    grant: GrantDep,
    by: AuthorDep,
    request: Request,
    experiment: Annotated[Name | None, Query(description="Experiment to erase from (all).")] = None,
) -> ErasureAnswer:
    """Erase all that the log holds of a unit: its decisions and what came of them. Answered once it
    is gone; the same call again is safe. 409: rows are left that may be the unit's, under a secret
    that the service does not know. What policies have learned from all units together
    stays."""
    if unknown := sorted(request.query_params.keys() - {"experiment"}):  # a typo would erase all
        raise Invalid("is no parameter of this route", path=unknown[0])
    expect_granted(grant, experiment)
    if experiment is not None:
        await services.experiments.find(experiment)
    return ErasureAnswer(erased=await services.eraser.erase(unit, by, experiment))


class Skip(Body):
    position: int = Field(
        ge=1, le=LARGEST_POSITION, description="Position of the event that cannot be folded."
    )


class SkipAnswer(BaseModel):
    served: bool = Field(
        description="Whether it is served again; false: another event cannot be folded."
    )


@router.post("/experiments/{experiment}/skips", responses=problems(400, 404, 409, 503))
async def skip_event(
    experiment: GrantedName, body: Skip, services: ServicesDep, by: AuthorDep
) -> SkipAnswer:
    """Pass over the event that a quarantined experiment stopped at, on every replica, and serve the
    experiment again. The event stays in the log; what it said is not learned."""
    await services.admin.skip(experiment, body.position, by)
    return SkipAnswer(served=experiment not in services.log.replicas.quarantined)


@router.get("/experiments/{experiment}/readers", responses=problems(404, 503))
async def list_readers(state: StateDep, services: ServicesDep) -> ReaderList:
    """Readers of the log that trimming waits for, and what each has taken."""
    needs = (await services.store.describe(state.name)).readers
    return ReaderList(
        readers={
            name: ReaderBody(position=one.position, row=one.row) for name, one in needs.items()
        }
    )


@router.put(
    "/experiments/{experiment}/readers/{reader}",
    status_code=204,
    response_class=Response,
    responses=problems(400, 404, 503),
)
async def put_reader(
    reader: Annotated[Name, Path()], body: ReaderBody, state: StateDep, services: ServicesDep
) -> None:
    """Say how much of the log a reader has taken: what comes after is not trimmed before it has
    that, too."""
    await services.store.save_reader(state.name, reader, ReaderPosition(body.position, body.row))


@router.delete(
    "/experiments/{experiment}/readers/{reader}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 503),
)
async def delete_reader(
    reader: Annotated[Name, Path()], state: StateDep, services: ServicesDep, by: AuthorDep
) -> None:
    """There is no such reader any more: trimming does not wait for it."""
    await services.store.save_reader(state.name, reader, None)
    log_change(state.name, f"reader {reader} removed", by)
