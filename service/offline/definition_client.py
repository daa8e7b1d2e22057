"""Send a definition to a running service, and read what it changes."""

import msgspec

from service.definition.difference import Difference
from service.definition.experiment import Definition
from service.errors import ConfigurationError
from service.offline.service_client import ask
from service.settings import Settings


class DefinitionAnswer(msgspec.Struct, frozen=True):
    """The answer to a definition, as far as it is needed here. restarted: policies that start from
    the prior, and why."""

    revision: int
    restarted: dict[str, str]
    changes: Difference


def send_definition(
    name: str,
    definition: Definition,
    settings: Settings,
    *,
    dry_run: bool = False,
    replace: bool = False,
    revision: int | None = None,
) -> DefinitionAnswer:
    """Define an experiment, or with dry_run say what it would change. Raises ConfigurationError
    with every fault where the service refuses, or does not answer as Forage.

    replace    an empty catalogue is meant
    revision   the one that is to be changed: the service refuses where another one came between
    """
    wanted = {"dry_run": dry_run, "replace": replace}
    content = ask(
        settings,
        "PUT",
        f"/experiments/{name}",
        json=definition.model_dump(mode="json"),
        parameters={option: "true" for option, asked in wanted.items() if asked},
        revision=revision,
    )
    try:
        return msgspec.json.decode(content, type=DefinitionAnswer)
    except msgspec.MsgspecError as fault:
        raise ConfigurationError(f"{settings.url} does not answer as Forage: {fault}") from fault
