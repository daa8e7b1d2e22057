"""Ask a running service for the changes of an experiment, and for what held once."""

from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from service.definition.experiment import Definition
from service.errors import ConfigurationError
from service.offline.service_client import ask
from service.settings import Settings


class ListedChange(msgspec.Struct, frozen=True):
    """A change, as far as a terminal shows it. at: unix seconds."""

    position: int
    at: float
    revision: int | None
    sentence: str


class PastState(msgspec.Struct, frozen=True):
    """What held at an instant; None: it is no longer listed. gone: why there is no definition."""

    revision: int | None
    definition: dict[str, Any] | None
    shares: dict[str, float] | None
    versions: dict[str, int] | None
    gone: str | None


class ListedChanges(msgspec.Struct, frozen=True):
    """A page of changes, newest first, whether the experiment is deleted now, and what held at the
    instant that was asked for."""

    changes: list[ListedChange]
    deleted: bool
    then: PastState | None


class PastDefinition(NamedTuple):
    """A definition of an earlier revision. deleted: the experiment is deleted now."""

    definition: Definition
    deleted: bool


def ask_changes(name: str, settings: Settings, **asked: str | int | None) -> bytes:
    """Return the answer of the route of changes, as JSON. asked: its parameters, without those
    that are None. Raises ConfigurationError where the service refuses, or does not answer as
    Forage."""
    parameters = {each: value for each, value in asked.items() if value is not None}
    path = f"/experiments/{quote(name, safe='')}/changes"
    return ask(settings, "GET", path, parameters=parameters)


def read_changes(content: bytes) -> ListedChanges:
    """Read an answer of the route of changes. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(content, type=ListedChanges)
    except msgspec.MsgspecError as fault:
        raise ConfigurationError(f"the service does not answer as Forage: {fault}") from fault


def past_definition(name: str, revision: int, settings: Settings) -> PastDefinition:
    """Return the definition that held once a revision was made. Raises ConfigurationError where
    there is none."""
    found = read_changes(ask_changes(name, settings, revision=revision, limit=1))
    then = found.then
    if then is None or then.definition is None:
        reason = "the service did not say what held" if then is None else then.gone
        raise ConfigurationError(f"{name}: revision {revision} has no definition: {reason}")
    return PastDefinition(Definition.model_validate(then.definition), found.deleted)
