"""forage repair: show the events that cannot be folded, and let every replica pass over one."""

from typing import TYPE_CHECKING, Annotated

import uvloop
from typer import Argument, Option

from service.cli.options import ServiceUrl, StoreUrl
from service.cli.running import read_settings
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    from service.offline.repair import Stopped

SHOWN_CHARACTERS = 2_000
"""Characters of an event that are shown."""


def repair(
    experiment: Annotated[
        str | None, Argument(metavar="EXPERIMENT", help="This experiment alone (all).")
    ] = None,
    skip: Annotated[
        int | None, Option(metavar="POSITION", help="Pass over the event at this position.")
    ] = None,
    store: StoreUrl = None,
    url: ServiceUrl = None,
) -> int:
    """Show events that cannot be folded, and pass over one.

    An experiment whose log holds an event that cannot be folded is quarantined: it answers 503
    while all others serve. This command shows the event and the reason. With `--skip` a running
    service appends a Skipped event, which every replica obeys; the event itself stays in the log,
    and nothing is learned of it.

    Exit status: 0 where every event can be folded, else 1.

        forage repair
        forage repair shop --skip 4711
    """
    from service.offline.repair import find_stopped

    settings = read_settings(store=store, url=url)
    if skip is not None:
        if experiment is None:
            raise ConfigurationError(
                "name the experiment: forage repair EXPERIMENT --skip POSITION"
            )
        return _skip(settings, experiment, skip)
    stopped = uvloop.run(find_stopped(settings.store, experiment))
    for each in stopped:
        print(_described(each))
    if not stopped:
        print("every event can be folded")
    return 1 if stopped else 0


def _described(stopped: "Stopped") -> str:
    name, position = stopped.experiment, stopped.position
    if position is None:
        return f"{name}: its log cannot be folded: {stopped.reason}"
    event = stopped.payload.decode(errors="replace")
    cut = f"... ({len(event):,} characters)" if len(event) > SHOWN_CHARACTERS else ""
    return (
        f"{name}: the event at position {position} cannot be folded: {stopped.reason}\n"
        f"  {event[:SHOWN_CHARACTERS]}{cut}\n"
        "  Events after it wait.\n"
        f"  To pass over it, on every replica: forage repair {name} --skip {position}"
    )


def _skip(settings: Settings, experiment: str, position: int) -> int:
    import httpx

    try:
        answer = httpx.post(
            f"{settings.url}/experiments/{experiment}/skips",
            json={"position": position},
            headers=settings.key_headers,
            timeout=600,  # the service folds the experiment's log again
            trust_env=False,
        )
    except httpx.HTTPError as fault:
        raise ConfigurationError(
            f"{settings.url} cannot be reached ({fault}): start the service, which serves every "
            "other experiment"
        ) from fault
    content = answer.json()
    if answer.status_code != 200:
        raise ConfigurationError(
            f"{settings.url} answers {answer.status_code}: {content['detail']}"
        )
    print(f"{experiment}: the event at position {position} is passed over from now on")
    if not content["served"]:
        print("Another event cannot be folded: run forage repair again.")
    return 0 if content["served"] else 1
