"""The route that imports visits of other systems into the log."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from sys import float_info
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from msgspec import Meta
from pydantic import AwareDatetime, BaseModel, Field, PlainValidator, ValidationError

from service.definition.experiment import DOTS, ArmId, InlineValues, UnitId
from service.definition.faults import faults_of
from service.definition.members import repeated
from service.definition.select_request import InlineArm, RequestedId, RequestedText, given
from service.errors import Invalid, Refused
from service.features.declaration import Name, Number
from service.http.dependencies import AuthorDep, ServicesDep
from service.http.openapi import problems
from service.http.problems import problem_of
from service.http.schemas import Body, Problem
from service.http.strict import (
    HALF,
    SURROGATE,
    StrictRoute,
    read_json,
    whole_characters,
)
from service.manage.importing import ImportStatus, Visit
from service.state.fold import State

Chance = Annotated[float, Field(ge=0, le=1)]


class ArmBody(Body):
    """An arm outside the catalogue: scored by its features, creating no head."""

    id: ArmId
    features: InlineValues = Field(default_factory=dict, json_schema_extra={"default": {}})


def arms_of(arms: Sequence[str | ArmBody] | None) -> list[str | InlineArm] | None:
    if arms is None:
        return None
    return [
        InlineArm(arm.id, {**arm.features}) if isinstance(arm, ArmBody) else arm for arm in arms
    ]


class VisitBody(Body):
    """What was shown elsewhere, and what came of it."""

    id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="The import's own: the same id is the same visit, whenever it comes."
    )
    at: Annotated[AwareDatetime, Field(strict=False)] = Field(
        description="Time of the visit: ISO 8601 with its zone, or unix seconds."
    )
    context: InlineValues = Field({}, description="Features of the user and the moment, by name.")
    arms: Annotated[list[ArmId | ArmBody], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="What could have been shown. Left out: the shown arm alone."
    )
    arm: ArmId = Field(description="What was shown.")
    propensity: Annotated[float, Field(gt=0, le=1)] = Field(
        description="Chance with which it was shown."
    )
    probabilities: Annotated[list[Chance], Field(fail_fast=True)] | None = Field(
        None, description="Probabilities of all arms, in their order, where they are known."
    )
    reward: Number | None = Field(None, description="Left out: not known; nothing is learned.")
    unit: UnitId | None = Field(None, description="Who it was for; stored only as a keyed hash.")

    def visit(self) -> Visit:
        return Visit(
            self.id, self.at.timestamp(), {**self.context}, self.arm, self.propensity,
            arms_of(self.arms), self.probabilities, self.reward, self.unit,
        )  # fmt: skip


LATEST_SECONDS = 2e10
"""Limit of a time as a number: pydantic takes a larger one for milliseconds."""
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
FiniteValues = Annotated[
    dict[str, bool | Finite | RequestedText | list[Finite] | None], Meta(max_length=256)
]


class PlainVisit(msgspec.Struct, forbid_unknown_fields=True):
    """A faultless `VisitBody` that names its arms, as nearly all are: msgspec reads it in a
    fraction of the time."""

    id: RequestedId
    at: Annotated[float, Meta(ge=0, le=LATEST_SECONDS)] | Annotated[datetime, Meta(tz=True)]
    arm: RequestedId
    propensity: Annotated[float, Meta(gt=0, le=1)]
    context: FiniteValues = {}
    arms: Annotated[list[RequestedId], Meta(min_length=1)] | None = None
    probabilities: list[Annotated[float, Meta(ge=0, le=1)]] | None = None
    reward: Finite | None = None
    unit: RequestedId | None = None

    def __post_init__(self) -> None:
        if self.arm in DOTS or self.unit in DOTS or not {*(self.arms or ())}.isdisjoint(DOTS):
            raise ValueError

    def visit(self) -> Visit:
        at = self.at.timestamp() if isinstance(self.at, datetime) else self.at
        return Visit(
            self.id, at, {**given(self.context)}, self.arm, self.propensity, self.arms,
            self.probabilities, self.reward, self.unit,
        )  # fmt: skip


def visit_of(sent: object) -> Visit | Refused:
    """Read one visit of a body, or name its faults: a faulty one refuses no other."""
    if isinstance(sent, Refused):
        return sent
    try:
        return msgspec.convert(sent, PlainVisit).visit()
    except msgspec.ValidationError:
        return examined(sent)


def examined(sent: object) -> Visit | Refused:
    """Read a visit by its model, which names faults and takes all that may be sent."""
    try:
        return VisitBody.model_validate(sent).visit()
    except ValidationError as error:
        faults = faults_of(error.errors(), sent, VisitBody)
        return Invalid(faults[0].message, faults=faults)


class VisitsRequest(Request):
    """The request of an import: each visit that cannot be stored is replaced by its refusal."""

    async def json(self) -> Any:
        """Parse the body. Raises JSONDecodeError, and Invalid where a member outside of the visits
        is given more than once."""
        body = await self.body()
        value, repeating = read_json(body)
        if repeating and (refusal := repeated(value, apart="visits")):
            raise refusal
        visits = value.get("visits") if isinstance(value, dict) else None
        if not isinstance(visits, list):
            return value
        if SURROGATE.search(body):
            visits[:] = [each if whole_characters(each) else Invalid(HALF) for each in visits]
        if repeating:
            visits[:] = [repeated(each) or each for each in visits]
        return value


class ImportRoute(StrictRoute):
    request_class = VisitsRequest


Unread = Annotated[Any, PlainValidator(lambda given: given, json_schema_input_type=VisitBody)]
"""A visit that `visit_of` reads once the length of the body is known to be allowed."""


class ImportBody(Body):
    policy: Name = Field(description="Policy that learns from the rewards.")
    visits: Annotated[list[Unread], Field(min_length=1)]
    skip_refused: bool = Field(
        False, description="Go on after a visit that is refused; else it is the last one taken up."
    )


class ImportItem(BaseModel):
    """Result of one visit. status: as of a route of its own. answer: whether it was there before;
    null: see problem."""

    status: int
    answer: ImportStatus | None = None
    problem: Problem | None = None

    @classmethod
    def of(cls, result: ImportStatus | Refused) -> "ImportItem":
        if isinstance(result, Refused):
            return cls(status=result.status, problem=problem_of(result))
        return cls(status=200, answer=result)


class ImportAnswer(BaseModel):
    results: list[ImportItem] = Field(
        description="Result of each visit, in order, as far as they were taken up."
    )


def resources(of: Callable[..., Awaitable[State]]) -> APIRouter:
    """Build the routes that import into the experiment that `of` finds."""
    routes = APIRouter(route_class=ImportRoute)

    @routes.post("/import", tags=["define"], responses=problems(400, 404, 503))
    async def import_visits(
        body: ImportBody,
        state: Annotated[State, Depends(of)],
        services: ServicesDep,
        by: AuthorDep,
    ) -> ImportAnswer:
        """Take visits that somebody else decided, with what came of them, in their order. The same
        call again changes nothing."""
        if len(body.visits) > services.settings.max_batch:
            raise Invalid(f"at most {services.settings.max_batch} visits", path="visits")
        visits = [visit_of(each) for each in body.visits]
        results = await services.importer.take(
            state, body.policy, visits, by, skip_refused=body.skip_refused
        )
        return ImportAnswer(results=[ImportItem.of(each) for each in results])

    return routes
