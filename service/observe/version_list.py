"""The trained versions of a policy: where each came from, what its gate saw, what it earned."""

from datetime import UTC, datetime

from msgspec import structs
from pydantic import BaseModel, Field

from service.manage.admin import find_folded
from service.state.fold import State
from service.state.learner import Learner
from service.state.reward_statistics import interval
from service.state.version_registry import RegisteredVersion, VersionState
from service.tables import aligned, figure


class GateReading(BaseModel):
    """What a gate saw of a version and of the one that served. Losses are of rewards as shares of
    their range: squared errors, or log losses."""

    settlements: int = Field(description="Rewards that both versions predicted.")
    gain: float = Field(description="Mean loss of the version that served, less this one's.")
    low: float = Field(description="Lower bound of the mean gain, at all times at once.")
    high: float = Field(description="Upper bound of the mean gain, at all times at once.")
    loss: float = Field(description="Mean loss of the version that served.")
    challenger_loss: float = Field(description="Mean loss of this version.")
    explains: bool = Field(
        description="Whether its net explains rewards that it was not fitted to (`explained` >= 4)."
    )


class PolicyVersion(BaseModel):
    """A trained version of a policy. Positions are of the log, times unix seconds."""

    version: int
    state: VersionState
    born: int = Field(description="Revision that the policy's head started at.")
    by: str = Field(description="Name of the key that handed it over; empty where keys are off.")
    staged_at: float
    staged_position: int
    trained_to: int = Field(description="Position that the head was rebuilt to.")
    rewards: int = Field(description="Rewards that its net was trained on.")
    seconds: float | None = Field(description="Length of the training; null: there was none.")
    validation_loss: float | None = Field(
        description="Loss of the net on rewards held out; null: no training, or it diverged."
    )
    ridge_loss: float | None = Field(description="Loss of a ridge regression on the same rewards.")
    explained: float | None = Field(
        description="Standard errors by which the net's loss there is below that of their level."
    )
    of: int | None = Field(description="Earlier version whose net it has; null: its own.")
    gate: GateReading | None = Field(description="What its gate saw; null: it compared nothing.")
    reason: str = Field(description="Why it serves or was rejected; empty while it waits.")
    share: float = Field(description="Share of the policy's decisions that are its own now.")
    served_from: float | None
    served_from_position: int | None
    served_until: float | None
    served_until_position: int | None
    settled: int = Field(description="Settled rewards of its decisions.")
    mean_reward: float | None
    mean_reward_interval: list[float] | None = Field(description="95 percent.")
    artifact: str = Field(description="SHA-256 of the artifact, which may be gone.")


class PolicyVersions(BaseModel):
    """The latest versions of a policy, newest first."""

    versions: list[PolicyVersion]


def versions_of(state: State, policy: str) -> PolicyVersions:
    """Return the versions of a policy that are kept. Raises NotFound."""
    learner = find_folded(state, policy)
    return PolicyVersions(
        versions=[_described(state, learner, each) for each in state.versions.of(policy)]
    )


def _described(state: State, learner: Learner, each: RegisteredVersion) -> PolicyVersion:
    gate = learner.gate_figures if each.state == "challenger" else each.gate
    earned, training = each.earned, each.training
    return PolicyVersion(
        version=each.number,
        state=each.state,
        born=each.born,
        by=each.by,
        staged_at=each.staged.at,
        staged_position=each.staged.position,
        trained_to=each.watermark,
        rewards=each.rewards,
        seconds=training and training.seconds,
        validation_loss=training and training.validation_loss,
        ridge_loss=training and training.ridge_loss,
        explained=training and training.explained,
        of=each.of,
        gate=gate and GateReading(**structs.asdict(gate)),
        reason=each.reason,
        share=_share(each.state, state.traffic.version_share(learner.name)),
        served_from=each.served and each.served.at,
        served_from_position=each.served and each.served.position,
        served_until=each.until and each.until.at,
        served_until_position=each.until and each.until.position,
        settled=earned.count,
        mean_reward=earned.total / earned.count if earned.count else None,
        mean_reward_interval=interval(earned, state.definition.reward),
        artifact=each.artifact,
    )


def _share(state: VersionState, challenger: float) -> float:
    """Return the share of a policy's decisions that a version makes. challenger: that of the one
    that is rolled out."""
    match state:
        case "serving":
            return 1 - challenger
        case "challenger":
            return challenger
        case "rejected" | "retired":
            return 0.0


def version_table(found: PolicyVersions) -> str:
    """Write the versions as a table, and below it why each serves or was rejected."""
    rows = [
        [
            f"{each.version}",
            each.state,
            f"{datetime.fromtimestamp(each.staged_at, UTC):%Y-%m-%d %H:%M}",
            f"{each.rewards:,}",
            _figure(each.validation_loss),
            _figure(each.ridge_loss),
            _figure(each.gate.gain if each.gate else None),
            f"{each.settled:,}",
            _figure(each.mean_reward),
        ]
        for each in found.versions
    ]
    head = [
        "version",
        "state",
        "staged",
        "trained on",
        "loss",
        "ridge",
        "gain",
        "settled",
        "reward",
    ]
    reasons = [each.reason for each in found.versions if each.reason]
    return "\n".join([*aligned([head, *rows]), *([""] if reasons else []), *reasons])


def _figure(value: float | None) -> str:
    return "-" if value is None else figure(value)
