"""Ask a running service for the rollouts of an experiment and its loss budget, and for steps."""

from typing import Any
from urllib.parse import quote

import msgspec

from service.errors import ConfigurationError
from service.offline.service_client import ask
from service.settings import Settings


class ListedFigures(msgspec.Struct, frozen=True):
    """Figures of a rollout, as far as a terminal shows them."""

    own: int
    baseline: int
    difference: float | None
    interval: tuple[float | None, float | None]
    margin: float | None


class ListedGuardrail(msgspec.Struct, frozen=True):
    """A guardrail of a rollout, as far as a terminal shows it."""

    guardrail: str
    segment: str
    state: str
    value: float | None
    bound: float | None
    decisions: int


class ListedStage(msgspec.Struct, frozen=True):
    """Forecast of a stage. None: it never ends."""

    share: float
    advance_seconds: float | None
    stop_seconds: float | None
    advance_own: tuple[float | None, float | None]


class ListedForecast(msgspec.Struct, frozen=True):
    stages: list[ListedStage]
    seconds: float | None
    cannot_end: bool


class ListedValue(msgspec.Struct, frozen=True):
    """What a policy would have earned on the log. None: it cannot be told."""

    sentence: str
    decisions: int
    support: float | None
    effective_sample_size: float | None


class PlannedRollout(msgspec.Struct, frozen=True):
    """A rollout that could be started. forecast: None where the baseline has too few decisions."""

    forecast: ListedForecast | None
    value: ListedValue


class ListedRollout(msgspec.Struct, frozen=True):
    """A rollout, as far as a terminal shows it."""

    challenger: str
    baseline: str
    state: str
    sentence: str
    stages: list[float]
    stage: int
    figures: ListedFigures | None
    guardrails: list[ListedGuardrail]
    forecast: ListedForecast | None
    warning: str | None


class ListedBudget(msgspec.Struct, frozen=True):
    """A loss budget, as far as a terminal shows it."""

    policy: str
    by: float
    share: float
    sentence: str


class ListedRollouts(msgspec.Struct, frozen=True):
    """The rollouts of an experiment, and its loss budget; None: it has none."""

    rollouts: list[ListedRollout]
    budget: ListedBudget | None


def _read(content: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as fault:
        raise ConfigurationError(f"the service does not answer as Forage: {fault}") from fault


def ask_rollouts(experiment: str, settings: Settings) -> tuple[bytes, ListedRollouts]:
    """Return the rollouts of an experiment and its loss budget, as JSON and as they are shown.
    Raises ConfigurationError, as all below."""
    content = ask(settings, "GET", f"{_path(experiment)}/rollouts")
    found: ListedRollouts = _read(content, ListedRollouts)
    return content, found


def forecast_rollout(experiment: str, body: dict[str, Any], settings: Settings) -> PlannedRollout:
    """Check a rollout and forecast it; start nothing. body: of the route."""
    content = ask(settings, "POST", f"{_path(experiment)}/forecast", json=body)
    found: PlannedRollout = _read(content, PlannedRollout)
    return found


def start_rollout(experiment: str, body: dict[str, Any], settings: Settings) -> ListedRollout:
    """Start a rollout. body: of the route."""
    content = ask(settings, "POST", f"{_path(experiment)}/rollouts", json=body)
    found: ListedRollout = _read(content, ListedRollout)
    return found


def step_rollout(
    experiment: str, policy: str, step: str, reason: str, settings: Settings
) -> ListedRollout:
    """Take a step: advance, hold, resume or back."""
    path = f"{_path(experiment)}/rollouts/{quote(policy, safe='')}/{step}"
    found: ListedRollout = _read(
        ask(settings, "POST", path, json={"reason": reason}), ListedRollout
    )
    return found


def _path(experiment: str) -> str:
    return f"/experiments/{quote(experiment, safe='')}"
