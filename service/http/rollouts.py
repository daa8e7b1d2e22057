"""The routes of rollouts and of the loss budget."""

from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field

from service.analysis.challenger_value import ChallengerValue
from service.analysis.evaluation_answer import IntervalEnds
from service.analysis.rollout_forecast import RolloutForecast
from service.definition.rollout import (
    Margin,
    OnBreach,
    OnUndecided,
    RolloutDefaults,
    StageHours,
    Stages,
    UndecidedDays,
)
from service.features.declaration import Name
from service.http.dependencies import (
    AuthorDep,
    IfMatch,
    ServicesDep,
    StateDep,
    revision_of,
)
from service.http.openapi import problems
from service.http.schemas import Body
from service.http.strict import StrictRoute
from service.manage.rollouts import BudgetStatus, RolloutStatus, plan_of
from service.state.fold import State
from service.state.guardrails import GuardrailName, GuardrailState
from service.state.rollout import (
    ReadingState,
    RolloutPlan,
    RolloutState,
    StepKind,
    reading_state,
)

router = APIRouter(tags=["rollouts"], route_class=StrictRoute)

PREFIX = "/experiments/{experiment}/rollouts"

Reason = Annotated[str, Field(max_length=500, description="Why, for people: the log keeps it.")]
Figure = float | None
"""A figure; null: it cannot be computed."""


def _as_defined(name: str) -> Any:
    """Return the field of a setting that a start may leave out."""
    said = RolloutDefaults.model_fields[name].description
    return Field(None, description=f"{said} Left out: as the definition's `rollout` says.")


class RolloutBody(Body):
    """A rollout to start."""

    policy: Name = Field(description="The challenger. Its share has to be 0.")
    baseline: Name = Field(description="The policy whose traffic it takes over.")
    stages: Stages | None = _as_defined("stages")
    margin: Margin | None = _as_defined("margin")
    stage_hours: StageHours | None = _as_defined("stage_hours")
    undecided_after_days: UndecidedDays | None = _as_defined("undecided_after_days")
    on_undecided: OnUndecided | None = _as_defined("on_undecided")
    ask: bool | None = _as_defined("ask")
    reason: Reason = ""

    def plan(self, state: State) -> RolloutPlan:
        """Return the rollout, with what the definition says where the body does not."""
        return plan_of(state, **self.model_dump(exclude={"reason"}, exclude_none=True))


class RolloutStepBody(Body):
    reason: Reason = ""


class RolloutStepAnswer(BaseModel):
    """A step of a rollout, and the figures that brought it about."""

    kind: StepKind
    at: float = Field(description="Unix seconds.")
    metric: str = Field(description="What decided.")
    value: Figure
    bound: Figure = Field(description="What the value was compared with.")
    decisions: int | None = Field(
        description="Decisions that the value is of; null: of the settled ones."
    )
    own: int = Field(description="Settled decisions of the challenger.")
    baseline: int = Field(description="Settled decisions of the baseline.")
    sentence: str
    by: str = Field(
        description="Name of the key that took it; `automatic`: the service; empty where keys are "
        "off."
    )
    reason: str


class RolloutFiguresAnswer(BaseModel):
    """What the log says of a rollout under way. Rewards are of a decision."""

    state: ReadingState
    own: int = Field(description="Settled decisions of the challenger.")
    baseline: int = Field(description="Settled decisions of the baseline.")
    visitors: Figure = Field(description="Effective visitors of the policy with fewer.")
    value: Figure = Field(description="Reward of the challenger.")
    baseline_value: Figure = Field(description="Reward of the baseline.")
    difference: Figure = Field(description="Challenger less baseline.")
    interval: tuple[Figure, Figure] = Field(
        description="Interval of the difference, which holds at all times at once, with 95 percent."
    )
    margin: Figure = Field(description="Loss that is allowed, in units of the reward.")
    lower: Figure = Field(
        description="Lower bound of the challenger's reward above what the margin asks for: above "
        "0, it may advance."
    )
    upper: Figure = Field(description="Upper bound of the same: below 0, it is rolled back.")
    evidence: Figure = Field(
        description="Evidence of a loss beyond the margin: at 1 the rollout is taken back."
    )
    newest: float | None = Field(description="Time of the last settlement, unix seconds.")


class GuardrailAnswer(BaseModel):
    """A guardrail of a rollout under way. Of decisions, those of the process that answers."""

    guardrail: GuardrailName
    segment: str = Field(description="Its segment; empty unless it is `segments`.")
    on_breach: OnBreach | None = Field(description="What follows a breach; null: it is off.")
    state: GuardrailState
    metric: str = Field(description="What is measured.")
    value: Figure
    bound: Figure = Field(description="What the value is compared with.")
    decisions: int = Field(description="Decisions, or visitors, that the value is of.")
    sentence: str = Field(description="Which value failed; empty unless it is breached.")


class StageForecastAnswer(BaseModel):
    """How long a stage takes by its own decisions alone, at the traffic of now."""

    share: float
    advance_seconds: Figure = Field(
        description="Time until an equal challenger advances, in the median."
    )
    stop_seconds: Figure = Field(
        description="Time until one that loses twice the margin is rolled back, in the median."
    )
    advance_own: tuple[Figure, Figure] = Field(
        description="Its settled decisions until then: in the median, and in 90 percent."
    )
    stop_own: tuple[Figure, Figure]


class RolloutForecastAnswer(BaseModel):
    """How long a rollout takes. Null: it never ends."""

    stages: list[StageForecastAnswer]
    seconds: Figure = Field(description="Time to the last stage, of an equal challenger.")
    cannot_end: bool = Field(
        description="The evidence takes longer than the rollout may stay undecided."
    )


class ChallengerValueAnswer(BaseModel):
    """What a policy would have earned on the log in place of its baseline: doubly robust estimates
    over the same decisions, with intervals of 95 percent. Null: the log cannot tell."""

    sentence: str = Field(
        description="The values and what they say of the margin, or why the log cannot tell."
    )
    loses: bool = Field(description="The interval of the difference lies wholly below the margin.")
    decisions: int = Field(
        description="Decisions since both policies are as they are, the newest 10,000 at most."
    )
    value: Figure = Field(description="Reward that a decision of the policy would have brought.")
    interval: IntervalEnds | None
    baseline_value: Figure = Field(description="The same of the baseline.")
    baseline_interval: IntervalEnds | None
    difference: Figure = Field(description="Policy less baseline.")
    difference_interval: IntervalEnds | None
    support: Figure = Field(
        description="Share of what the policy would show that the log could have shown."
    )
    effective_sample_size: Figure = Field(
        description="Decisions of the policy's own that would tell as much."
    )


class RolloutAnswer(BaseModel):
    policy: str
    baseline: str
    version: int | None = Field(
        description="Number of the version that is rolled out over the one that serves; null: the "
        "policy is."
    )
    challenger: str = Field(description="What takes over: a policy, or policy/version.")
    state: RolloutState
    sentence: str = Field(description="Where it stands.")
    stages: list[float]
    stage: int = Field(description="The present stage, from 0 on.")
    share: float = Field(description="Share of the traffic of both that the challenger has.")
    margin: float = Field(description="Share of the baseline's reward that it may lose.")
    stage_hours: float
    undecided_after_days: float
    on_undecided: OnUndecided
    ask: bool
    started_at: float = Field(description="Unix seconds.")
    stage_since: float = Field(description="Unix seconds.")
    last: RolloutStepAnswer | None = Field(description="The last step; null: there was none.")
    figures: RolloutFiguresAnswer | None = Field(description="Null: it has ended.")
    guardrails: list[GuardrailAnswer] = Field(description="Empty once it has ended.")
    forecast: RolloutForecastAnswer | None = Field(
        description="Null: it has ended, or the baseline has too few decisions."
    )
    warning: str | None = Field(
        description="What the log says against it, in the answer to its start. Null: nothing."
    )


class BudgetAnswer(BaseModel):
    """A loss budget and where it stands. The learner: all policies with shares but the one."""

    policy: str = Field(description="The policy that the service is compared with.")
    by: float = Field(description="Share of its reward that the service may lose.")
    share: float = Field(description="Share of the traffic that the learner may have.")
    ratio: Figure = Field(
        description="Lower bound of the learner's reward as a share of the policy's, both from the "
        "low end of the range. It holds at all times at once, with 95 percent; 0: nothing is known."
    )
    own: int = Field(description="Settled decisions of the learner.")
    baseline: int = Field(description="Settled decisions of the policy.")
    value: Figure = Field(description="Reward of a decision of the learner.")
    baseline_value: Figure = Field(description="Reward of a decision of the policy.")
    newest: float | None = Field(description="Time of the last settlement, unix seconds.")
    moves: int = Field(description="Number of moves of the learner's share so far.")
    sentence: str = Field(description="Where it stands.")


class RolloutList(BaseModel):
    rollouts: list[RolloutAnswer]
    budget: BudgetAnswer | None = Field(description="Null: the definition has no loss budget.")


class RolloutPlanAnswer(BaseModel):
    """A rollout that could be started."""

    policy: str
    baseline: str
    stages: list[float]
    margin: float
    forecast: RolloutForecastAnswer | None = Field(
        description="Null: the baseline has too few decisions."
    )
    value: ChallengerValueAnswer


@router.get(PREFIX, responses=problems(404, 503))
async def list_rollouts(state: StateDep, services: ServicesDep) -> RolloutList:
    """Return the last rollout of each challenger or of its versions, and the loss budget."""
    rollouts, budget = await _answers(state, services), state.traffic.budget
    return RolloutList(
        rollouts=rollouts,
        budget=None if budget is None else _budget_answer(await services.rollouts.budget(state)),
    )


@router.get(PREFIX + "/{policy}", responses=problems(404, 503))
async def get_rollout(
    policy: Annotated[Name, Path()], state: StateDep, services: ServicesDep
) -> RolloutAnswer:
    """Return where the rollout of a challenger stands."""
    return _answer(state, services, await services.rollouts.status(state, policy))


@router.get("/experiments/{experiment}/budget", responses=problems(404, 503))
async def get_budget(state: StateDep, services: ServicesDep) -> BudgetAnswer:
    """Return where the loss budget stands. 404: the definition has none (`never_below`)."""
    return _budget_answer(await services.rollouts.budget(state))


@router.post("/experiments/{experiment}/forecast", responses=problems(400, 404, 409, 503))
async def forecast_rollout(
    body: RolloutBody, state: StateDep, services: ServicesDep
) -> RolloutPlanAnswer:
    """Check a rollout, forecast how long each stage will take, say what the policy would have
    earned on the log, and start nothing."""
    plan = body.plan(state)
    outlook = await services.rollouts.forecast(state, plan)
    return RolloutPlanAnswer(
        policy=plan.policy,
        baseline=plan.baseline,
        stages=list(plan.stages),
        margin=plan.margin,
        forecast=outlook.forecast and _forecast(outlook.forecast),
        value=_value(outlook.value),
    )


@router.post(PREFIX, status_code=201, responses=problems(400, 404, 409, 412, 503))
async def start_rollout(
    body: RolloutBody,
    state: StateDep,
    services: ServicesDep,
    response: Response,
    by: AuthorDep,
    if_match: IfMatch = None,
) -> RolloutAnswer:
    """Start to roll a challenger out in place of its baseline. The experiment has a new
    revision."""
    plan = body.plan(state)
    rollouts = services.rollouts
    status = await rollouts.start(state, plan, by, revision_of(if_match), body.reason)
    response.headers["ETag"] = f'"{state.revision}"'
    return _answer(state, services, status)


@router.post(PREFIX + "/{policy}/{step}", responses=problems(400, 404, 409, 412, 503))
async def step_rollout(
    policy: Annotated[Name, Path()],
    step: Literal["advance", "hold", "resume", "back"],
    body: RolloutStepBody,
    state: StateDep,
    services: ServicesDep,
    response: Response,
    by: AuthorDep,
    if_match: IfMatch = None,
) -> RolloutAnswer:
    """Advance a rollout by a stage, hold it, let it go on, or give the traffic back to the
    baseline. The experiment has a new revision."""
    rollouts = services.rollouts
    status = await rollouts.step(state, policy, step, by, revision_of(if_match), body.reason)
    response.headers["ETag"] = f'"{state.revision}"'
    return _answer(state, services, status)


async def _answers(state: StateDep, services: ServicesDep) -> list[RolloutAnswer]:
    found = await services.rollouts.all(state)
    return [_answer(state, services, each) for each in found.values()]


def _answer(state: State, services: ServicesDep, status: RolloutStatus) -> RolloutAnswer:
    rollout, reading, look = status.rollout, status.look.reading, status.look
    known = {
        **{name: _figure(value) for name, value in msgspec.structs.asdict(reading).items()},
        "state": reading_state(reading, services.log.clock.now(state)),
        "visitors": _figure(reading.units),
        "difference": _figure(look.difference),
        "interval": (_figure(look.low), _figure(look.high)),
        "margin": _figure(reading.within - look.difference),
    }
    fields = msgspec.structs.asdict(rollout)
    return RolloutAnswer.model_validate(
        {
            **fields,
            "challenger": rollout.challenger,
            "stages": list(rollout.stages),
            "share": rollout.share,
            "sentence": status.sentence,
            "last": rollout.last
            and {
                **msgspec.structs.asdict(rollout.last),
                "by": rollout.last_by,
                "reason": rollout.last_reason,
            },
            "figures": None if rollout.ended else known,
            "guardrails": [
                {**msgspec.structs.asdict(each), "metric": each.metric} for each in status.findings
            ],
            "forecast": status.forecast and _forecast(status.forecast),
            "warning": status.warning or None,
        }
    )


def _budget_answer(status: BudgetStatus) -> BudgetAnswer:
    budget, reading = status.budget, msgspec.structs.asdict(status.reading)
    known = {name: _figure(value) for name, value in reading.items()}
    own = {**known, **msgspec.structs.asdict(budget), "sentence": status.sentence}
    return BudgetAnswer.model_validate(own)


def _value(found: ChallengerValue) -> ChallengerValueAnswer:
    own, baseline, difference = found.own, found.baseline, found.difference
    return ChallengerValueAnswer(
        sentence=found.sentence,
        loses=found.loses,
        decisions=found.decisions,
        value=own and own.value,
        interval=own and own.interval,
        baseline_value=baseline and baseline.value,
        baseline_interval=baseline and baseline.interval,
        difference=difference and difference.value,
        difference_interval=difference and difference.interval,
        support=found.support,
        effective_sample_size=found.effective,
    )


def _forecast(forecast: RolloutForecast) -> RolloutForecastAnswer:
    return RolloutForecastAnswer(
        stages=[
            StageForecastAnswer(
                share=stage.share,
                advance_seconds=_figure(stage.advance_s),
                stop_seconds=_figure(stage.stop_s),
                advance_own=(_figure(stage.advance.median), _figure(stage.advance.late)),
                stop_own=(_figure(stage.stop.median), _figure(stage.stop.late)),
            )
            for stage in forecast.stages
        ],
        seconds=_figure(forecast.seconds),
        cannot_end=forecast.cannot_end,
    )


def _figure(value: Any) -> Any:
    """Return null for a number that JSON does not have."""
    return None if isinstance(value, float) and not isfinite(value) else value
