"""Routes of the console: current figures, history, figures of arms, and the last decisions."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from service import __version__
from service.bandits.kinds.fields import Share
from service.features.declaration import Name
from service.http.dependencies import (
    AuthorDep,
    GrantDep,
    IfMatch,
    ServicesDep,
    StateDep,
    revision_of,
)
from service.http.openapi import problems
from service.http.schemas import Body, PolicyState
from service.http.strict import StrictRoute
from service.observe.overview import ArmPage, Order

router = APIRouter(route_class=StrictRoute)


class ExperimentHealth(BaseModel):
    name: str
    revision: int
    position: int = Field(description="Log position the state stands at.")
    recovered: bool = Field(description="Folded to the log's end once.")
    snapshot_age_seconds: float | None = Field(
        description="Age of the last snapshot; null: none by this process."
    )
    arms: int
    policies: list[str]
    control: str | None = Field(description="Policy that the verdict compares the others with.")
    training_due: list[str] = Field(description="Policies whose next training is due.")
    staged: list[str] = Field(description="Policies with a version on its way.")
    settled: int = Field(description="Rewards settled, of all policies.")
    mean_reward: float | None


class Quarantine(BaseModel):
    name: str
    position: int | None = Field(
        description="Position of the event that cannot be folded; null: the log itself is lost."
    )
    reason: str


class ServiceStatus(BaseModel):
    """One process and what it serves."""

    now: float = Field(description="Unix seconds.")
    started: float
    version: str
    store: str
    durability: str = Field(description="What an acknowledged write survives.")
    degraded: bool = Field(description="The log cannot be written.")
    behind: bool = Field(description="Others may have appended what is not folded here.")
    lag_seconds: float | None = Field(description="Since the log was followed; null: not shared.")
    processes: int = Field(description="Services that share the log and live.")
    waiting_decisions: int = Field(description="Answered, and not in the log yet.")
    experiments: list[ExperimentHealth]
    quarantined: list[Quarantine] = Field(
        description="Experiments that are not served, since their log cannot be folded."
    )


class RewardScaleAnswer(BaseModel):
    low: float
    high: float
    default: float | None
    aggregation: Literal["first", "sum", "last"]
    examination: list[float] | None = Field(
        description="Chance that a user looks at each slot of a slate, given or learned; null: "
        "every miss counts whole."
    )


class PolicyFigures(PolicyState):
    traffic: float = Field(description="Its part of the traffic that names no policy.")
    decisions: int | None = Field(description="Decisions in the log; null while it is gone.")
    settled: int
    total: float
    squares: float


class ExperimentStatus(ExperimentHealth):
    now: float
    schema_version: int
    last_change: int | None = Field(
        description="Log position of the last change with `notable`, as GET .../changes lists "
        "them; null: none is kept."
    )
    reward: RewardScaleAnswer
    figures: list[PolicyFigures]


class PolicyHistory(BaseModel):
    """A column each; one place, one moment."""

    name: str
    at: list[float] = Field(description="Unix seconds.")
    count: list[int] = Field(description="Rewards settled.")
    total: list[float]
    squares: list[float]
    decisions: list[int] = Field(description="Decisions of this service since its start.")
    propensity: list[float | None] = Field(description="Running mean, of the shown arm.")
    entropy: list[float | None] = Field(description="Running mean, nats.")
    share: list[float] = Field(description="Share of the traffic that names no policy.")


class HistoryAnswer(BaseModel):
    step_seconds: int
    policies: list[PolicyHistory]


class ArmFigures(BaseModel):
    arm: str
    active: bool = Field(description="True in the catalogue; else it is retired.")
    impressions: int = Field(description="Settled: shown, and known what came of it.")
    total: float = Field(description="Sum of rewards; of clicks, their count.")
    mean_reward: float | None
    mean_reward_interval: tuple[float, float] | None = Field(description="95 percent.")
    share: float = Field(description="Share of the impressions of all arms.")


class ArmFiguresAnswer(BaseModel):
    found: int = Field(description="Arms that match, on all pages.")
    since: int = Field(description="Log position from which on arms are counted.")
    impressions: int = Field(description="Impressions of all arms.")
    arms: list[ArmFigures]


class RecentDecision(BaseModel):
    id: str
    at: float = Field(description="Unix seconds.")
    policy: str
    arm: str = Field(description="The first that was shown.")
    shown: int
    candidates: int
    propensity: float
    model_version: str


class RecentDecisions(BaseModel):
    decisions: list[RecentDecision]


class ShareBody(Body):
    share: Share = Field(
        description="Weight beside the others'; 0: it gets no traffic that names no policy."
    )
    reason: str = Field("", max_length=500, description="Why, for people: the log keeps it.")


class ShareAnswer(BaseModel):
    policy: str
    share: float
    revision: int


@router.get("/status", tags=["observe"])
async def get_status(services: ServicesDep, grant: GrantDep) -> ServiceStatus:
    """Return the status of this process, its log, and the health of every experiment."""
    return ServiceStatus(
        version=__version__,
        store=services.settings.store.partition("://")[0],
        durability=services.store.durability,
        **services.overview.process(grant),
    )


@router.get("/experiments/{experiment}/status", tags=["observe"], responses=problems(404, 503))
async def get_experiment_status(state: StateDep, services: ServicesDep) -> ExperimentStatus:
    """Return how each policy does, beside the others. It is cheap: ask as often as you like."""
    return ExperimentStatus.model_validate(await services.overview.experiment(state))


@router.get("/experiments/{experiment}/history", tags=["observe"], responses=problems(404, 503))
async def get_history(
    state: StateDep,
    services: ServicesDep,
    step: Annotated[Literal["5", "300"], Query(description="Seconds between samples.")] = "5",
    after: Annotated[float, Query(description="Unix seconds: later samples alone.")] = 0.0,
) -> HistoryAnswer:
    """Return each policy's sums over time: an hour in steps of 5 seconds, a week in steps of 300.
    They are kept in memory, since this process started."""
    return HistoryAnswer.model_validate(services.overview.history(state, int(step), after))


@router.get("/experiments/{experiment}/arm-figures", tags=["observe"], responses=problems(404, 503))
async def list_arm_figures(
    state: StateDep,
    services: ServicesDep,
    policy: Annotated[Name | None, Query(description="Left out: all together.")] = None,
    order: Annotated[Order, Query()] = "impressions",
    descending: Annotated[bool, Query()] = True,
    match: Annotated[str, Query(max_length=256, description="Part of the id.")] = "",
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ArmFiguresAnswer:
    """Return what came of each arm, page by page."""
    page = ArmPage(policy, order, descending, match, offset, limit)
    return ArmFiguresAnswer.model_validate(services.overview.arms(state, page))


@router.get("/experiments/{experiment}/decisions", tags=["observe"], responses=problems(404, 503))
async def list_decisions(
    state: StateDep,
    services: ServicesDep,
    policy: Annotated[Name | None, Query(description="Left out: of all.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RecentDecisions:
    """Return the last decisions that this service made, the newest first: 50 of each policy are
    kept. GET /decisions/{id} says why."""
    decisions = await services.overview.decisions(state, policy, limit)
    return RecentDecisions.model_validate({"decisions": decisions})


@router.put(
    "/experiments/{experiment}/policies/{policy}/share",
    tags=["define"],
    responses=problems(400, 404, 409, 412, 503),
)
async def put_share(
    policy: Annotated[Name, Path()],
    body: ShareBody,
    state: StateDep,
    services: ServicesDep,
    response: Response,
    by: AuthorDep,
    if_match: IfMatch = None,
) -> ShareAnswer:
    """Change a policy's share of the traffic; nothing else of the definition changes. Heads stay as
    they are, and the experiment has a new revision."""
    await services.admin.share(state, policy, body.share, by, revision_of(if_match), body.reason)
    response.headers["ETag"] = f'"{state.revision}"'
    return ShareAnswer(policy=policy, share=body.share, revision=state.revision)
