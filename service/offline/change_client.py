"""Ask a running service for the changes of an experiment, and for what held once."""

from typing import Any
from urllib.parse import quote

import msgspec

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
