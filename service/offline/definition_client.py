"""Send a definition to a running service, and read what it changes."""

import httpx
import msgspec

from service.definition.difference import Difference
from service.definition.experiment import Definition
from service.errors import ConfigurationError
from service.settings import Settings

REQUEST_TIMEOUT_S = 60.0


class DefinitionAnswer(msgspec.Struct, frozen=True):
    """The answer to a definition, as far as it is needed here. restarted: policies that start from
    the prior, and why."""

    revision: int
    restarted: dict[str, str]
    changes: Difference


class _Problem(msgspec.Struct, frozen=True):
    detail: str
    errors: list[dict[str, str]] = []


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
    match = {} if revision is None else {"If-Match": f'"{revision}"'}
    asked = {"dry_run": dry_run, "replace": replace}
    try:
        answer = httpx.put(
            f"{settings.url}/experiments/{name}",
            params={option: "true" for option, wanted in asked.items() if wanted},
            json=definition.model_dump(mode="json"),
            headers={**settings.key_headers, **match},
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        )
        if answer.is_success:
            return msgspec.json.decode(answer.content, type=DefinitionAnswer)
        refused = problem_text(answer.content)
    except (httpx.HTTPError, msgspec.MsgspecError) as fault:
        raise ConfigurationError(f"{settings.url} does not answer as Forage: {fault}") from fault
    raise ConfigurationError(f"{settings.url}: {refused}")


def problem_text(content: bytes) -> str:
    """Return the text of problem details: what is wrong, and each fault on a line of its own.
    Raises MsgspecError where they are none."""
    refused = msgspec.json.decode(content, type=_Problem)
    faults = [f"  {each.get('path', '')}: {each.get('message', '')}" for each in refused.errors]
    return "\n".join([refused.detail, *faults])
