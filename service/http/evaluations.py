"""The routes that judge policies: by what they earned, and by what they would have earned."""

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, Field

from service.bandits.kinds import AnyPolicy
from service.control.report import DatedVerdict
from service.evaluation.answer import EvaluationAnswer
from service.evaluation.request import EvaluationRequest, Selection
from service.features.declaration import Name
from service.http.dependencies import ServicesDep, StateDep
from service.http.openapi import problems
from service.http.schemas import Body
from service.http.strict import StrictRoute

router = APIRouter(tags=["observe"], route_class=StrictRoute)

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


@router.post("/experiments/{experiment}/evaluations", responses=problems(400, 404, 409, 503))
async def evaluate(
    body: EvaluationBody, state: StateDep, services: ServicesDep
) -> EvaluationAnswer:
    """Estimate what policies would have earned on the log: live ones, or definitions that never
    ran. It takes seconds to minutes, in a process of its own, one at a time. Where too many wait,
    another is refused (409); one that takes too long is ended (422)."""
    found = await services.evaluations.run(state.name, body.request(state.name))
    return EvaluationAnswer.model_validate(found)


@router.get("/experiments/{experiment}/shadows", responses=problems(404, 409, 503))
async def get_shadows(state: StateDep, services: ServicesDep) -> EvaluationAnswer:
    """Estimate what each shadow would have earned on the decisions since it was defined as it is:
    the intervals to watch are `watched` and `over_logged_watched`. The log is read in a process of
    its own, and the answer is kept for ten times as long as that took, ten seconds at least."""
    return EvaluationAnswer.model_validate(await services.verdicts.shadows(state))


@router.get("/experiments/{experiment}/verdict", responses=problems(404, 409, 503))
async def get_verdict(state: StateDep, services: ServicesDep) -> DatedVerdict:
    """Say which policy pays: each compared with the control, by the decisions whose policy was
    drawn. It reads the whole log, in a process of its own, and is kept for ten times as long as
    that took, ten seconds at least."""
    return DatedVerdict.model_validate(await services.verdicts.of(state))
