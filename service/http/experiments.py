"""The routes of experiments: definitions, arms, policies, versions.

Arms and policies have a short form without /experiments/{experiment} for a service with one.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.bandits.kinds import AnyPolicy
from service.definition.experiment import ArmId
from service.errors import Invalid
from service.features.declaration import Name
from service.http.changes import LARGEST_NUMBER
from service.http.dependencies import (
    AuthorDep,
    GrantDep,
    GrantedName,
    IfMatch,
    ServicesDep,
    StateDep,
    revision_of,
)
from service.http.openapi import problems
from service.http.schemas import (
    Arm,
    ArmList,
    ArmPatchBody,
    ArmsBody,
    ArmValuesBody,
    DefinedAnswer,
    ExperimentAnswer,
    ExperimentBody,
    ExperimentList,
    ExperimentSummary,
    PolicyAnswer,
    PolicyList,
    PolicyStatus,
    VersionAnswer,
)
from service.http.strict import StrictRoute
from service.manage.admin import expect_listed
from service.observe.version_list import PolicyVersions, versions_of
from service.security.access import granted
from service.state.fold import State

router = APIRouter(tags=["define"], route_class=StrictRoute)

DryRun = Annotated[bool, Query(description="Change nothing: answer as the definition would be.")]


def _answer(state: State, response: Response) -> ExperimentAnswer:
    response.headers["ETag"] = f'"{state.revision}"'
    return ExperimentAnswer(
        name=state.name,
        revision=state.revision,
        schema_version=state.schema_version,
        position=state.position,
        definition=state.current_definition,
    )


def _arm(state: State, arm: str) -> Arm:
    """Return an arm as it is now. Raises NotFound."""
    expect_listed(state, arm)
    return Arm(id=arm, features=state.arms[arm], attributes=state.attributes.get(arm, {}))


def _listed(state: State, arms: Iterable[str]) -> Response:
    """Write an `ArmList` of those of the arms that the catalogue has now, without validating each
    again, which took longest: they were validated on arrival."""
    features, attributes = state.arms, state.attributes
    listed = [
        {"id": arm, "features": features[arm], "attributes": attributes.get(arm, {})}
        for arm in arms
        if arm in features
    ]
    return Response(msgspec.json.encode({"arms": listed}), media_type="application/json")


@router.get("/experiments")
async def list_experiments(services: ServicesDep, grant: GrantDep) -> ExperimentList:
    """Return all experiments that are served."""
    return ExperimentList(
        experiments=[
            ExperimentSummary(
                name=name,
                revision=state.revision,
                position=state.position,
                policies=list(state.learners),
                arms=len(state.arms),
            )
            for name, state in services.log.replicas.states.items()
            if granted(grant, name)
        ]
    )


@router.get("/experiments/{experiment}", responses=problems(404, 503))
async def get_experiment(state: StateDep, response: Response) -> ExperimentAnswer:
    """Return its definition as it is now, and the revision that a change can name with If-Match."""
    return _answer(state, response)


@router.put(
    "/experiments/{experiment}",
    responses={
        201: {"model": DefinedAnswer, "description": "Defined for the first time."},
        **problems(400, 409, 412, 503),
    },
)
async def put_experiment(
    experiment: GrantedName,
    body: ExperimentBody,
    services: ServicesDep,
    response: Response,
    by: AuthorDep,
    if_match: IfMatch = None,
    dry_run: DryRun = False,
    replace: Annotated[
        bool,
        Query(
            description="A definition without arms is meant to empty the catalogue. Without it, "
            "and without If-Match, that is a 409."
        ),
    ] = False,
) -> DefinedAnswer:
    """Define an experiment, first or anew. The content is that of an experiment file: it replaces
    the whole definition and the catalogue, and what it leaves out takes its default."""
    if body.name not in (None, experiment):
        raise Invalid("is not the name in the path", path="name")
    revision = revision_of(if_match)
    if dry_run:
        plan = await services.admin.plan(experiment, body, revision)
        return DefinedAnswer(
            name=experiment,
            revision=plan.event.revision,
            schema_version=plan.event.schema_version,
            position=plan.state.position,
            definition=plan.definition,
            restarted=plan.restarts,
            changes=plan.changes,
        )
    state, plan = await services.admin.define(experiment, body, by, revision, replace=replace)
    response.status_code = 201 if plan.created else 200
    return DefinedAnswer(
        **vars(_answer(state, response)), restarted=plan.restarts, changes=plan.changes
    )


@router.delete(
    "/experiments/{experiment}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 409, 412, 503),
)
async def delete_experiment(
    state: StateDep, services: ServicesDep, by: AuthorDep, if_match: IfMatch = None
) -> None:
    """Serve it no longer. Its log stays."""
    await services.admin.delete(state, by, revision_of(if_match))


def arm_resources(of: Callable[..., Awaitable[State]]) -> APIRouter:
    """Arms of the experiment that `of` finds."""
    routes = APIRouter(route_class=StrictRoute)
    Experiment = Annotated[State, Depends(of)]
    ArmPath = Annotated[ArmId, Path()]

    @routes.get("/arms", tags=["define"], response_model=ArmList, responses=problems(404, 503))
    async def list_arms(state: Experiment) -> Response:
        """Return the catalogue."""
        return _listed(state, state.arms)

    @routes.post(
        "/arms", tags=["define"], response_model=ArmList, responses=problems(400, 404, 503)
    )
    async def upsert_arms(
        body: ArmsBody, state: Experiment, services: ServicesDep, by: AuthorDep
    ) -> Response:
        """Add arms, or replace their features and attributes, which stand side by side. Where one
        is at fault, nothing changes."""
        await services.admin.upsert_arms(state, body.arms, by)
        return _listed(state, body.arms)

    @routes.get("/arms/{arm:id}", tags=["define"], responses=problems(404, 503))
    async def get_arm(arm: ArmPath, state: Experiment) -> Arm:
        """Return one arm of the catalogue."""
        return _arm(state, arm)

    @routes.put("/arms/{arm:id}", tags=["define"], responses=problems(400, 404, 503))
    async def put_arm(
        arm: ArmPath, body: ArmValuesBody, state: Experiment, services: ServicesDep, by: AuthorDep
    ) -> Arm:
        """Add an arm, or replace its features and attributes: what the body leaves out goes."""
        await services.admin.put_arm(state, arm, body.features, body.attributes, by)
        return Arm(id=arm, features=body.features, attributes=body.attributes)

    @routes.patch("/arms/{arm:id}", tags=["define"], responses=problems(400, 404, 503))
    async def patch_arm(
        arm: ArmPath, body: ArmPatchBody, state: Experiment, services: ServicesDep, by: AuthorDep
    ) -> Arm:
        """Change the named features and attributes of an arm, and keep the others. A change of
        attributes alone touches nothing that is learned."""
        await services.admin.patch_arm(state, arm, body.features, body.attributes, by)
        return _arm(state, arm)

    @routes.delete(
        "/arms/{arm:id}",
        tags=["define"],
        status_code=204,
        response_class=Response,
        responses=problems(404, 503),
    )
    async def delete_arm(
        arm: ArmPath, state: Experiment, services: ServicesDep, by: AuthorDep
    ) -> None:
        """Remove an arm: it is no longer chosen; what was shown of it can still be rewarded."""
        await services.admin.remove_arm(state, arm, by)

    return routes


def policy_resources(of: Callable[..., Awaitable[State]]) -> APIRouter:
    """Policies of the experiment that `of` finds."""
    routes = APIRouter(route_class=StrictRoute)
    Experiment = Annotated[State, Depends(of)]

    @routes.get("/policies", tags=["observe"], responses=problems(404, 503))
    async def list_policies(state: Experiment, services: ServicesDep) -> PolicyList:
        """Return how each policy does."""
        return PolicyList.model_validate({"policies": await services.overview.policies(state)})

    @routes.get("/policies/{policy}", tags=["observe"], responses=problems(404, 503))
    async def get_policy(
        policy: Annotated[Name, Path()], state: Experiment, services: ServicesDep
    ) -> PolicyStatus:
        """Return how one policy does."""
        [status] = await services.overview.policies(state, policy)
        return PolicyStatus.model_validate(status)

    @routes.put(
        "/policies/{policy}",
        tags=["define"],
        responses={
            201: {"model": PolicyAnswer, "description": "A new policy."},
            **problems(400, 404, 409, 412, 503),
        },
    )
    async def put_policy(
        policy: Annotated[Name, Path()],
        body: AnyPolicy,
        state: Experiment,
        services: ServicesDep,
        response: Response,
        by: AuthorDep,
        if_match: IfMatch = None,
        dry_run: DryRun = False,
    ) -> PolicyAnswer:
        """Create a policy, or give it these settings; what they leave out takes its default.
        Nothing else of the definition changes, and the experiment has a new revision."""
        admin, revision = services.admin, revision_of(if_match)
        if dry_run:
            plan = await admin.plan_policy(state.name, policy, body, revision)
        else:
            _, plan = await admin.define_policy(state.name, policy, body, by, revision)
            response.status_code = 201 if f"policies.{policy}" in plan.changes.added else 200
            response.headers["ETag"] = f'"{plan.event.revision}"'
        return PolicyAnswer(
            policy=policy,
            settings=plan.definition.policies[policy],
            revision=plan.event.revision,
            restarted=plan.restarts,
            changes=plan.changes,
        )

    @routes.post(
        "/policies/{policy}/reset", tags=["define"], responses=problems(404, 409, 412, 503)
    )
    async def reset_policy(
        policy: Annotated[Name, Path()],
        state: Experiment,
        services: ServicesDep,
        by: AuthorDep,
        if_match: IfMatch = None,
    ) -> PolicyStatus:
        """Let a policy forget all it learned: its head starts from the prior, its net untrained.
        The experiment has a new revision."""
        await services.admin.reset(state, policy, by, revision_of(if_match))
        [status] = await services.overview.policies(state, policy)
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
async def publish_version(
    policy: Annotated[Name, Path()],
    state: StateDep,
    services: ServicesDep,
    request: Request,
    by: AuthorDep,
) -> VersionAnswer:
    """Take over a trained version from the trainer. It learns from every reward, and serves once
    its gate lets it (`training.gate`)."""
    artifact = await request.body()
    return VersionAnswer(version=await services.admin.stage(state, policy, artifact, by))


@router.get("/experiments/{experiment}/policies/{policy}/versions", responses=problems(404, 503))
async def list_versions(policy: Annotated[Name, Path()], state: StateDep) -> PolicyVersions:
    """Return the last 50 trained versions of a policy, newest first: what each was trained on, what
    its gate saw, and what it earned."""
    return versions_of(state, policy)


@router.post(
    "/experiments/{experiment}/policies/{policy}/versions/{version}/activate",
    status_code=202,
    responses=problems(404, 409, 503),
)
async def activate_version(
    policy: Annotated[Name, Path()],
    version: Annotated[int, Path(ge=1, le=LARGEST_NUMBER)],
    state: StateDep,
    services: ServicesDep,
    by: AuthorDep,
) -> VersionAnswer:
    """Go back to the net of an earlier version. Its head is rebuilt from the log, and both serve as
    the next version, without a gate. A 409 says why it cannot be done."""
    return VersionAnswer(version=await services.admin.go_back(state, policy, version, by))
