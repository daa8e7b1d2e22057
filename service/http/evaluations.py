"""The routes that judge policies and rules: by what they earned, and by what they would have
earned."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Response
from pydantic import AwareDatetime, BaseModel, Field

from service.analysis.evaluation_answer import EvaluationAnswer
from service.analysis.jobs import Job
from service.analysis.policies import chosen_policies
from service.analysis.request import EvaluationRequest, Selection
from service.analysis.rule_prices_answer import DatedRulePrices
from service.analysis.running import RunState
from service.analysis.verdict_answer import DatedVerdict
from service.bandits.kinds import AnyPolicy
from service.definition.rules import RULES, DeclaredRule
from service.errors import ProcessEnded, Refused, StoreUnavailable
from service.features.declaration import Name
from service.http.dependencies import GrantDep, ServicesDep, StateDep
from service.http.openapi import problems
from service.http.problems import problem, problem_of
from service.http.schemas import Body, Problem
from service.http.strict import StrictRoute

router = APIRouter(tags=["observe"], route_class=StrictRoute)

JSON_MEDIA_TYPE = "application/json"

Time = Annotated[AwareDatetime, Field(strict=False)]


class EvaluationBody(Body):
    """What to evaluate, and on which decisions."""

    policies: Annotated[list[Name], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="Live policies and shadows. Left out: all live ones, or with `definition` "
        "none.",
    )
    definition: Annotated[dict[Name, AnyPolicy], Field(max_length=16)] = Field(
        {}, description="Policies that never ran, by name, as in an experiment's definition."
    )
    rules: Annotated[dict[Name, DeclaredRule | None], Field(max_length=RULES)] = Field(
        {},
        description="Rules that the policies are to keep beside, or in place of, those of the "
        "experiment, by name; null: without the rule of this name.",
    )
    decisions: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        10_000, description="The newest so many of those that the rest selects."
    )
    since: Time | None = Field(None, description="Decisions from then on.")
    until: Time | None = Field(None, description="Decisions before then.")
    logged_by: Annotated[list[Name], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Decisions of these policies alone; implies `own_propensity`."
    )
    frozen: bool = Field(
        False,
        description="Policies as they stood before the first of the decisions; else each as it "
        "learned, decision by decision.",
    )
    own_propensity: bool = Field(
        False,
        description="Weights by the assigned policy's propensity, where chance assigned it, too.",
    )
    slates: Literal["refuse", "first_slot"] = Field(
        "refuse",
        description="Decisions of several arms: no estimate, or that of the value of their first "
        "slot, which every value then is (`metric`).",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    def request(self, experiment: str) -> EvaluationRequest:
        return EvaluationRequest(
            experiment=experiment,
            policies=self.policies,
            definitions={
                name: policy.model_dump(mode="json", exclude_unset=True)
                for name, policy in self.definition.items()
            },
            rules={
                name: None if rule is None else rule.model_dump(mode="json", exclude_unset=True)
                for name, rule in self.rules.items()
            },
            selection=Selection(
                since=self.since.timestamp() if self.since else None,
                until=self.until.timestamp() if self.until else None,
                newest=self.decisions,
                logged_by=frozenset(self.logged_by) if self.logged_by else None,
            ),
            freeze=self.frozen,
            own=self.own_propensity,
            first_slot=self.slates == "first_slot",
            confidence=self.confidence,
        )


class EvaluationProgress(BaseModel):
    """An evaluation passes over the log several times, in this order."""

    doing: str = Field(
        description="What is counted in this pass: `events read`, `decisions read`, `events "
        "replayed` or `decisions evaluated`."
    )
    done: int
    of: int = Field(description="All of this pass.")


class EvaluationJob(BaseModel):
    """An evaluation from its start to its end."""

    id: str
    state: RunState = Field(
        description="`waiting` for others, `running`, or ended: `done`, `failed`, `cancelled`."
    )
    seconds: float | None = Field(description="Seconds that it has run, or ran. Null: it waits.")
    progress: EvaluationProgress | None = Field(description="Null until the log is being read.")
    result: EvaluationAnswer | None = Field(description="Null unless it is `done`.")
    problem: Problem | None = Field(description="Why it has `failed`; else null.")


def _told(job: Job) -> bytes:
    """Return an `EvaluationJob` as JSON, with the result as its process wrote it."""
    run = job.run
    return msgspec.json.encode(
        {
            "id": job.id,
            "state": run.state,
            "seconds": run.seconds,
            "progress": None if run.step is None else msgspec.structs.asdict(run.step),
            "result": msgspec.Raw(run.task.result()) if run.state == "done" else None,
            "problem": None if run.fault is None else _problem_of(run.fault).model_dump(),
        }
    )


def _problem_of(fault: BaseException) -> Problem:
    if isinstance(fault, Refused | StoreUnavailable):
        return problem_of(fault)
    detail = str(fault) if isinstance(fault, ProcessEnded) else "it was logged, and is a bug"
    return problem(500, "evaluation-failed", "The evaluation failed", detail)


EvaluationId = Annotated[
    str, Path(description="Id from the answer to the start of the evaluation.")
]

ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "It waits or runs: ask for it at `Location`.",
        "headers": {
            "Location": {"description": "Path of the evaluation.", "schema": {"type": "string"}}
        },
    }
}


@router.post(
    "/experiments/{experiment}/evaluations",
    status_code=202,
    response_model=EvaluationJob,
    responses={**problems(400, 404, 429, 503), **ACCEPTED},
)
async def start_evaluation(
    body: EvaluationBody, state: StateDep, services: ServicesDep, grant: GrantDep
) -> Response:
    """Start to estimate what policies would have earned on the log: live ones, or definitions that
    never ran. It takes seconds to minutes, in a process of its own, one at a time; a few may wait,
    half of them of one key (429). One that takes too long fails."""
    request = body.request(state.name)
    chosen_policies(state, request)
    job = services.evaluations.start(state.name, request, grant.id if grant else "")
    place = {"Location": f"/experiments/{state.name}/evaluations/{job.id}"}
    return Response(_told(job), 202, place, JSON_MEDIA_TYPE)


@router.get(
    "/experiments/{experiment}/evaluations/{id}",
    response_model=EvaluationJob,
    responses=problems(404, 503),
)
async def get_evaluation(id: EvaluationId, state: StateDep, services: ServicesDep) -> Response:
    """Return how far an evaluation is, and once it has ended its result, or why it failed. The
    process that started it knows it: the newest 8 ended ones of an experiment and 32 in all, for an
    hour after their end."""
    return Response(_told(services.evaluations.find(state.name, id)), media_type=JSON_MEDIA_TYPE)


@router.delete(
    "/experiments/{experiment}/evaluations/{id}",
    status_code=204,
    response_class=Response,
    responses=problems(404, 503),
)
async def cancel_evaluation(id: EvaluationId, state: StateDep, services: ServicesDep) -> None:
    """Cancel an evaluation that waits or runs, and its process; forget one that has ended."""
    await services.evaluations.cancel(state.name, id)


@router.get(
    "/experiments/{experiment}/shadows",
    response_model=EvaluationAnswer,
    responses=problems(404, 503),
)
async def get_shadows(state: StateDep, services: ServicesDep) -> Response:
    """Estimate what each shadow would have earned on the decisions since its present definition:
    the intervals to watch are `anytime_interval` and `uplift_anytime`. The log is read in a process
    of its own, from where the last look stopped, and the answer is kept for ten times as long as
    that took, ten seconds at least."""
    return Response(await services.verdicts.shadows(state), media_type=JSON_MEDIA_TYPE)


@router.get(
    "/experiments/{experiment}/verdict",
    response_model=DatedVerdict,
    responses=problems(404, 503),
)
async def get_verdict(state: StateDep, services: ServicesDep) -> Response:
    """Say which policy pays: each compared with the control, by the decisions whose policy was
    drawn. It reads the log in a process of its own, from where the last look stopped, and is kept
    for ten times as long as that took, ten seconds at least."""
    return Response(await services.verdicts.of(state), media_type=JSON_MEDIA_TYPE)


@router.get(
    "/experiments/{experiment}/rules",
    response_model=DatedRulePrices,
    responses=problems(404, 503),
)
async def get_rules(state: StateDep, services: ServicesDep) -> Response:
    """Say what each rule does, whether it holds now and what it costs: by the decisions for which
    it was off, a share `measure` of the units, and those for which it held. It reads the log in a
    process of its own, from where the last look stopped, and is kept for ten times as long as that
    took, ten seconds at least."""
    return Response(await services.verdicts.rules(state), media_type=JSON_MEDIA_TYPE)
