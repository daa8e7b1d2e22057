"""Ask a running service, for commands."""

from collections.abc import Mapping

import httpx
import msgspec

from service.errors import ConfigurationError
from service.settings import Settings

REQUEST_TIMEOUT_S = 60.0


class _Problem(msgspec.Struct, frozen=True):
    detail: str
    errors: list[dict[str, str]] = []


def ask(
    settings: Settings,
    method: str,
    path: str,
    *,
    json: object = None,
    parameters: Mapping[str, str | int] | None = None,
    revision: int | None = None,
) -> bytes:
    """Return the answer of a route. revision: the one that is to be changed. Raises
    ConfigurationError with every fault where the service refuses, or does not answer as Forage."""
    match = {} if revision is None else {"If-Match": f'"{revision}"'}
    try:
        answer = httpx.request(
            method,
            f"{settings.url}{path}",
            params=parameters,
            json=json,
            headers={**settings.key_headers, **match},
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        )
        if answer.is_success:
            return answer.content
        refused = _problem_text(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError) as fault:
        raise ConfigurationError(f"{settings.url} does not answer as Forage: {fault}") from fault
    raise ConfigurationError(f"{settings.url}: {refused}")


def _problem_text(content: bytes) -> str:
    """Return the text of problem details: what is wrong, and each fault on a line of its own.
    Raises MsgspecError where they are none."""
    refused = msgspec.json.decode(content, type=_Problem)
    faults = [f"  {each.get('path', '')}: {each.get('message', '')}" for each in refused.errors]
    return "\n".join([refused.detail, *faults])
