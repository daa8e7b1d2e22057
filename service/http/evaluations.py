"""The routes that judge policies: by what they earned, and by what they would have earned."""

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, Field

from service.bandits.kinds import AnyPolicy
from service.control.report import Verdict
from service.evaluation.request import EvaluationRequest, Selection
from service.features.declaration import Name
from service.http.dependencies import ServicesDep, StateDep
from service.http.openapi import problems
from service.http.schemas import Body
from service.http.strict import StrictRoute

router = APIRouter(tags=["observe"], route_class=StrictRoute)

Time = Annotated[AwareDatetime, Field(strict=False)]
Interval = Annotated[
    tuple[float, float], Field(description="Lower and upper end, of the confidence that was asked.")
]


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


class EstimateAnswer(BaseModel):
    value: float = Field(description="As `metric` says.")
    standard_error: float
    interval: Interval = Field(description="To be shown: Student's t on the effective sample.")
    bootstrap: Interval = Field(description="Bias-corrected and accelerated.")


class PolicyEvaluation(BaseModel):
    policy: str
    never_ran: bool = Field(description="It is of `definition`, or a shadow.")
    learned_from: int | None = Field(
        description="Rewards that it had learned from at the last of the decisions: of none it is "
        "refused. Null: its kind does not learn."
    )
    refused: str | None = Field(description="Why the log cannot tell; null where it can.")
    effective_sample_size: float
    largest_weight: float
    mean_weight: float = Field(description="1 but for chance, where the log supports the policy.")
    mean_weight_error: float | None = Field(
        description="Its standard error; null of fewer than two decisions."
    )
    other_candidates: int = Field(
        description="Decisions of which it would have had other arms to choose from, since one of "
        "the two policies retrieves them: where there are any, it is refused."
    )
    unsupported: float = Field(
        description="Share of what it would show that had no chance in the log."
    )
    unsupported_arms: dict[str, float] = Field(description="The same by arm, largest first.")
    estimates: dict[str, EstimateAnswer] = Field(
        description="By estimator: ips, snips, dr, switch_dr. Empty where refused."
    )
    direct_method: float | None = Field(
        description="The model of rewards alone, for reference: its bias is not known, so that it "
        "has no interval. Null where refused."
    )
    over_logged: float | None = Field(
        description="How much more than the log it would have earned, by dr. Null where refused."
    )
    over_logged_interval: Interval | None
    watched: Interval | None = Field(
        description="Of dr; holds at all times at once. Null but for shadows."
    )
    over_logged_watched: Interval | None = Field(
        description="Of over_logged; holds at all times at once. Null but for shadows."
    )
    decisions: int = Field(description="That it was evaluated on.")
    logged: float | None = Field(description="Mean of `metric` over these, as they were made.")
    since: str | None = Field(description="Of the first of them.")


class LoggedValue(BaseModel):
    value: float | None = Field(
        description="Mean of `metric` over the decisions as they were made; null where there are "
        "none, or slates are refused."
    )
    interval: Interval | None


class EvaluationAnswer(BaseModel):
    experiment: str
    sentence: str = Field(description="What to conclude.")
    decisions: int = Field(description="That were evaluated on.")
    since: str | None = Field(description="Of the first of them.")
    until: str | None = Field(description="Of the last.")
    frozen: bool
    shadows: bool = Field(description="Policies are the shadows of the experiment.")
    metric: Literal["reward_per_decision", "reward_of_first_slot"] = Field(
        description="What every value is of."
    )
    confidence: float
    logged: LoggedValue
    logged_by: dict[str, int] = Field(description="Decisions by the policy that made them.")
    earned_by: dict[str, float] = Field(
        description="Mean of `metric` over the decisions that each policy made."
    )
    slates: int = Field(description="Decisions of several arms.")
    shortlists: int = Field(
        description="Decisions whose candidates their policy retrieved from the catalogue."
    )
    untold: int = Field(description="Imported with the chance of the shown arm alone.")
    erased: int = Field(description="Events that were erased, and not learned from here.")
    left_out: dict[str, int] = Field(description="Decisions that were left out, by reason.")
    policies: list[PolicyEvaluation] = Field(description="The best first, by dr.")


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
async def shadows(state: StateDep, services: ServicesDep) -> EvaluationAnswer:
    """Estimate what each shadow would have earned on the decisions since it was defined as it is:
    the intervals to watch are `watched` and `over_logged_watched`. The log is read in a process of
    its own, and the answer is kept for ten times as long as that took, ten seconds at least."""
    return EvaluationAnswer.model_validate(await services.verdicts.shadows(state))


@router.get("/experiments/{experiment}/verdict", responses=problems(404, 409, 503))
async def verdict(state: StateDep, services: ServicesDep) -> Verdict:
    """Say which policy pays: each compared with the control, by the decisions whose policy was
    drawn. It reads the whole log, in a process of its own, and is kept for ten times as long as
    that took, ten seconds at least."""
    return Verdict.model_validate(await services.verdicts.of(state))
