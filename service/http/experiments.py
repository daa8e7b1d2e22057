"""The routes of experiments: definitions, arms, policies, versions.

Arms and policies have a short form without /experiments/{experiment} for a service with one.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Request, Response
from pydantic import WithJsonSchema

from service.definition.experiment import ArmId, Name
from service.errors import Invalid, NotFound
from service.http.routes import Core, Granted, problems
from service.http.schemas import (
    Arm,
    ArmList,
    ArmsBody,
    ExperimentAnswer,
    ExperimentBody,
    ExperimentList,
    ExperimentSummary,
    FeaturesBody,
    PolicyList,
    PolicyStatus,
    VersionAnswer,
)
from service.security.access import expect_granted, granted
from service.state.fold import State

router = APIRouter(tags=["define"])

REVISION = re.compile(r'"?[0-9]{1,18}"?')

IfMatch = Annotated[
    str | None,
    Header(description='Revision that is to be changed, quoted, as ETag gives it: "3".'),
    WithJsonSchema({"type": "string", "pattern": rf"^({REVISION.pattern}|\*)$"}),
]


async def named(experiment: Annotated[Name, Path()], core: Core, grant: Granted) -> State:
    expect_granted(grant, experiment)
    return await core.engine.experiment(experiment)


async def only(core: Core, grant: Granted) -> State:
    return await named(core.engine.resolve(None), core, grant)


Named = Annotated[State, Depends(named)]


def _answer(state: State, response: Response) -> ExperimentAnswer:
    response.headers["ETag"] = f'"{state.revision}"'
    return ExperimentAnswer(
        name=state.name,
        revision=state.revision,
        schema_version=state.schema_version,
        position=state.position,
        definition=state.definition.model_copy(update={"arms": state.arms}),
    )


def _listed(arms: Mapping[str, Mapping[str, Any]]) -> Response:
    """As `ArmList`, but for the check of each, which took longer than all else: what is listed was
    checked when it came."""
    listed = [{"id": arm, "features": features} for arm, features in arms.items()]
    return Response(msgspec.json.encode({"arms": listed}), media_type="application/json")


def revision_of(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    if not REVISION.fullmatch(if_match):
        raise Invalid('give a revision in quotes, as ETag does: "3"', path="If-Match")
    return int(if_match.strip('"'))


@router.get("/experiments")
async def experiments(core: Core, grant: Granted) -> ExperimentList:
    """All experiments that are served."""
    return ExperimentList(
        experiments=[
            ExperimentSummary(
                name=name,
                revision=state.revision,
                position=state.position,
                policies=list(state.learners),
                arms=len(state.arms),
            )
            for name, state in core.journal.states.items()
            if granted(grant, name)
        ]
    )


@router.get("/experiments/{experiment}", responses=problems(404, 503))
async def get_experiment(state: Named, response: Response) -> ExperimentAnswer:
    """Its definition as it is now, and the revision that a change can name with If-Match."""
    return _answer(state, response)


@router.put(
    "/experiments/{experiment}",
    responses={
        201: {"model": ExperimentAnswer, "description": "Defined for the first time."},
        **problems(400, 409, 412, 503),
    },
)
async def put_experiment(
    experiment: Annotated[Name, Path()],
    body: ExperimentBody,
    core: Core,
    grant: Granted,
    response: Response,
    if_match: IfMatch = None,
) -> ExperimentAnswer:
    """Define an experiment, first or anew. The content is that of an experiment file."""
    expect_granted(grant, experiment)
    if body.name not in (None, experiment):
        raise Invalid("is another name than that of the path", path="name")
    state, created = await core.admin.define(experiment, body, revision_of(if_match))
    response.status_code = 201 if created else 200
    return _answer(state, response)


@router.delete(
    "/experiments/{experiment}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 409, 412, 503),
)
async def delete_experiment(state: Named, core: Core, if_match: IfMatch = None) -> None:
    """Serve it no longer. Its log stays."""
    await core.admin.delete(state, revision_of(if_match))


def resources(of: Callable[..., Awaitable[State]]) -> APIRouter:
    """Arms and policies of the experiment that `of` finds."""
    routes = APIRouter()
    Experiment = Annotated[State, Depends(of)]
    ArmPath = Annotated[ArmId, Path()]

    @routes.get("/arms", tags=["define"], response_model=ArmList, responses=problems(404, 503))
    async def arms(state: Experiment) -> Response:
        """The catalogue."""
        return _listed(state.arms)

    @routes.post(
        "/arms", tags=["define"], response_model=ArmList, responses=problems(400, 404, 503)
    )
    async def upsert_arms(body: ArmsBody, state: Experiment, core: Core) -> Response:
        """Add arms, or give them other features; all or, where one is at fault, none."""
        await core.admin.upsert_arms(state, body.arms)
        return _listed(body.arms)

    @routes.get("/arms/{arm}", tags=["define"], responses=problems(404, 503))
    async def get_arm(arm: ArmPath, state: Experiment) -> Arm:
        """One arm of the catalogue."""
        if arm not in state.arms:
            raise NotFound("the catalogue has no such arm", path="arm")
        return Arm(id=arm, features=state.arms[arm])

    @routes.put("/arms/{arm}", tags=["define"], responses=problems(400, 404, 503))
    async def put_arm(arm: ArmPath, body: FeaturesBody, state: Experiment, core: Core) -> Arm:
        """Add an arm, or give it other features."""
        await core.admin.upsert_arms(state, {arm: body.features})
        return Arm(id=arm, features=body.features)

    @routes.delete(
        "/arms/{arm}",
        tags=["define"],
        status_code=204,
        response_class=Response,
        responses=problems(404, 503),
    )
    async def delete_arm(arm: ArmPath, state: Experiment, core: Core) -> None:
        """No longer chosen; what was shown of it can still be rewarded."""
        await core.admin.remove_arm(state, arm)

    @routes.get("/policies", tags=["observe"], responses=problems(404, 503))
    async def policies(state: Experiment, core: Core) -> PolicyList:
        """How each policy does."""
        return PolicyList.model_validate({"policies": await core.overview.policies(state)})

    @routes.get("/policies/{policy}", tags=["observe"], responses=problems(404, 503))
    async def policy(
        policy: Annotated[Name, Path()], state: Experiment, core: Core
    ) -> PolicyStatus:
        """How one policy does."""
        [status] = await core.overview.policies(state, policy)
        return PolicyStatus.model_validate(status)

    @routes.post(
        "/policies/{policy}/reset", tags=["define"], responses=problems(404, 409, 412, 503)
    )
    async def reset(
        policy: Annotated[Name, Path()], state: Experiment, core: Core, if_match: IfMatch = None
    ) -> PolicyStatus:
        """Let a policy forget all it learned: its head starts from the prior, its net untrained.
        The experiment has a new revision."""
        await core.admin.reset(state, policy, revision_of(if_match))
        [status] = await core.overview.policies(state, policy)
        return PolicyStatus.model_validate(status)

    return routes


@router.post(
    "/experiments/{experiment}/policies/{policy}/versions",
    status_code=202,
    responses=problems(404, 409, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def post_version(
    policy: Annotated[Name, Path()], state: Named, core: Core, request: Request
) -> VersionAnswer:
    """For the trainer: hand over a trained version. It is staged, catches up with the log and then
    serves."""
    return VersionAnswer(version=await core.admin.stage(state, policy, await request.body()))


SCOPED: Final = (("/experiments/{experiment}", resources(named)), ("", resources(only)))
"""Prefixes and their routes."""
