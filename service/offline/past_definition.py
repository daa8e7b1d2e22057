"""Ask a running service for the definition of an earlier revision.

Apart from `change_client`: to read a definition takes numpy and scipy, half a second of a command
that only prints changes.
"""

from typing import NamedTuple

from service.definition.experiment import Definition
from service.errors import ConfigurationError
from service.offline.change_client import ask_changes, read_changes
from service.settings import Settings


class PastDefinition(NamedTuple):
    """A definition of an earlier revision. deleted: the experiment is deleted now."""

    definition: Definition
    deleted: bool


def past_definition(name: str, revision: int, settings: Settings) -> PastDefinition:
    """Return the definition that held once a revision was made. Raises ConfigurationError where
    there is none."""
    found = read_changes(ask_changes(name, settings, revision=revision, limit=1))
    then = found.then
    if then is None or then.definition is None:
        reason = "the service did not say what held" if then is None else then.gone
        raise ConfigurationError(f"{name}: revision {revision} has no definition: {reason}")
    return PastDefinition(Definition.model_validate(then.definition), found.deleted)
