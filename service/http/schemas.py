"""Bodies and answers of the routes that FastAPI serves. Bodies refuse unknown fields."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.bandits.kinds import AnyPolicy
from service.definition.difference import Difference
from service.definition.experiment import (
    ArmId,
    ArmTable,
    Definition,
    InlineAttribute,
    InlineAttributes,
    InlineValue,
    InlineValues,
)
from service.definition.faults import IN_PARTS
from service.features.declaration import Name
from service.features.model import at_most
from service.settle.settlement import ActivationStatus

MOST_MEMBERS = 64
"""Most members of a body: more than any route takes."""


class Body(BaseModel):
    """A body of a request. Strings and booleans are not numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_members(cls, given: object) -> object:
        """Refuse too many members: each unknown one would be a fault of its own."""
        if isinstance(given, dict) and len(given) > MOST_MEMBERS:
            raise ValueError(f"has {len(given)} members, more than any body here takes")
        return given


class ActivationAnswer(BaseModel):
    status: ActivationStatus


class ProblemFault(BaseModel):
    path: str
    message: str


class Problem(BaseModel):
    """RFC 9457 problem details; every error has this shape."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemFault] = Field(description="Each fault and where it is.")
    request_id: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Id of a request that failed with 5xx, as in the service's log.",
    )


class ExperimentBody(Definition):
    """The content of an experiment file."""

    name: Name | None = Field(
        None, exclude=True, description="May be left out; the name that the path says."
    )


class ExperimentAnswer(BaseModel):
    name: str
    revision: int
    schema_version: int
    position: int = Field(description="Log position the state stands at.")
    definition: Definition


class DefinedAnswer(ExperimentAnswer):
    restarted: dict[str, str] = Field(
        description="Policies that start from the prior, and why. Others keep what they learned of "
        "the columns that stay."
    )
    changes: Difference = Field(
        description="What it changes of the definition and the catalogue of before."
    )


class PolicyAnswer(BaseModel):
    """A policy as it is defined now."""

    policy: str
    settings: AnyPolicy
    revision: int = Field(description="Revision of the experiment.")
    restarted: dict[str, str] = Field(
        description="The policy, where it starts from the prior, and why."
    )
    changes: Difference


class ExperimentSummary(BaseModel):
    name: str
    revision: int
    position: int
    policies: list[str]
    arms: int


class ExperimentList(BaseModel):
    experiments: list[ExperimentSummary]


class Arm(BaseModel):
    id: str
    features: dict[str, object]
    attributes: dict[str, object]


class ArmList(BaseModel):
    arms: list[Arm]


class ArmsBody(Body):
    arms: Annotated[
        dict[ArmId, ArmTable], Field(min_length=1, max_length=10_000), IN_PARTS, at_most(10_000)
    ]


class ArmValuesBody(Body):
    """All values of an arm."""

    features: InlineValues = Field(default_factory=dict, json_schema_extra={"default": {}})
    attributes: InlineAttributes = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        description="Values that rules read and no policy learns.",
    )


class ArmPatchBody(Body):
    """Values of an arm that change; the others stay."""

    features: Annotated[dict[str, InlineValue | None], Field(max_length=256), at_most(256)] = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        description="null removes a feature, whose default holds then.",
    )
    attributes: Annotated[
        dict[str, InlineAttribute | None], Field(max_length=256), at_most(256)
    ] = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        description="null removes an attribute.",
    )


class HeadHealthAnswer(BaseModel):
    smallest_eigenvalue: float = Field(description="Smallest eigenvalue of the precision matrix A.")
    condition_number: float = Field(description="Largest over smallest eigenvalue of A.")
    effective_rank: float = Field(
        description="Effective number of directions that rewards came from."
    )
    effective_count: float
    noise: float
    digest: str = Field(
        description="Digest of all its bits: replicas at one position have the same."
    )


class VersionEntry(BaseModel):
    version: int | None = Field(None, description="Version that serves from here; null: a change.")
    watermark: int | None = Field(None, description="Log position that it was trained to.")
    change: str | None = Field(
        None, description="Part of the world that was found to have changed."
    )
    position: int
    at: float


class PolicyState(BaseModel):
    name: str
    kind: str
    share: float
    mean_reward: float | None
    mean_reward_interval: tuple[float, float] | None = Field(description="95 percent.")
    reward_warning: str | None = Field(
        description="What to do where the largest recent reward is a hundred times the median or "
        "more; null: it is not."
    )
    propensity_mean: float | None = Field(description="Running mean over shown arms.")
    propensity_minimum: float | None
    entropy_mean: float | None = Field(description="Running mean, in nats.")
    version: int
    staged: int | None
    rewards: int = Field(description="Learned from, since its head was born.")
    training_due: bool
    training_due_at: int | None = Field(description="Count of rewards; null: never trained.")


class PolicyStatus(PolicyState):
    decisions: int
    model_version: str
    head: HeadHealthAnswer | None
    trained_to: int | None = Field(description="Log position; null: never trained.")
    versions: list[VersionEntry]


class PolicyList(BaseModel):
    policies: list[PolicyStatus]


class VersionAnswer(BaseModel):
    version: int


class Health(BaseModel):
    status: Literal["ok", "starting", "degraded", "failed"] = Field(
        description="Status. starting: the log is being recovered, and other requests are refused; "
        "degraded: the log is gone at present; failed: the store is damaged, and the service's "
        "own log says how."
    )
    version: str
    store: str
    durability: str = Field(description="What an acknowledged write survives.")
    quarantined: int = Field(
        description="Experiments that are not served, since their log cannot be folded."
    )


class Recovering(BaseModel):
    """Progress of a start in folding the log of an experiment."""

    experiment: str
    position: int
    of: int = Field(description="Last position of the log.")


Unready = Literal["starting", "behind", "degraded", "lost", "stopping"]


class Readiness(BaseModel):
    ready: bool
    reason: Unready | None = Field(
        description="Why it is not ready. behind: it has not reached the end of a shared log for "
        "more than 2 s; degraded: the log is gone; lost: the logs of all experiments were emptied; "
        "stopping: a signal has stopped it."
    )
    recovering: Recovering | None = Field(
        description="While it starts: the experiment whose log it folds."
    )
    positions: dict[str, int] = Field(description="Log position, by experiment.")
