"""forage rebuild: fold heads again, without decisions that should not have been learned."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import uvloop
from typer import BadParameter, Option

from service.cli.options import (
    Names,
    OnlyExperiment,
    ServiceUrl,
    StoreUrl,
    names,
    seconds,
)
from service.cli.running import progress, read_settings
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.offline.rebuild import Rebuilt

CONDITION_NAMES = {"key": "key", "unit": "unit", "from": "since", "to": "until"}


class ConditionFields(dict[str, Any]):
    """Fields of a Condition. A class of its own, as Typer accepts no list of generic types."""


def _condition(text: str) -> ConditionFields:
    """Split at commas, but only before a known name. Raises BadParameter."""
    condition = ConditionFields()
    for part in re.split(rf",(?=(?:{'|'.join(CONDITION_NAMES)})=)", text):
        name, given, value = part.partition("=")
        if name not in CONDITION_NAMES or not given or not value:
            raise BadParameter(
                f"write it as {', '.join(f'{each}=...' for each in CONDITION_NAMES)}"
            )
        if CONDITION_NAMES[name] in condition:
            raise BadParameter(f"{name} is given twice: repeat --without")
        condition[CONDITION_NAMES[name]] = seconds(value) if name in ("from", "to") else value
    return condition


def rebuild(
    without: Annotated[
        list[ConditionFields],
        Option(
            parser=_condition,
            metavar="WHAT",
            help="Decisions to leave out: key=NAME, unit=ID, from=TIME, to=TIME (ISO 8601, UTC). "
            "Commas join conditions that must all hold; a repeated option adds decisions.",
        ),
    ],
    experiment: OnlyExperiment = None,
    policies: Annotated[
        Names | None,
        Option(parser=names, metavar="A,B", help="Policies (all that have a head and learn)."),
    ] = None,
    folder: Annotated[
        Path, Option("--to", metavar="FOLDER", help="Folder for the versions.")
    ] = Path("rebuilt"),
    activate: Annotated[
        bool, Option("--activate", help="Hand the versions to the service, to serve.")
    ] = False,
    store: StoreUrl = None,
    url: ServiceUrl = None,
) -> int:
    """Fold heads again, without the decisions that you name.

    Fold the heads of an experiment's policies again from the log, without the decisions that you
    name. The versions are written to files; with `--activate` the service takes them in as it takes
    trained ones, catches them up with the log and serves them. Neither a later correction nor a
    later training brings back what is left out. The store is only read; a service may be running on
    it.

    A file can be handed over later with `POST /experiments/{name}/policies/{policy}/versions`, as
    long as the policy has no newer version. Revoke a key before you leave out its decisions.

        forage rebuild --experiment shop --without key=page,from=2026-01-31
        forage rebuild --experiment shop --without unit=user-7 --without unit=user-9 --activate
    """
    from service.offline.rebuild import Condition, hand_over, rebuild_store

    settings = read_settings(store=store, url=url)
    conditions = [Condition(**fields) for fields in without]
    with progress() as say:
        work = rebuild_store(
            settings.store, experiment, policies, conditions, settings.token_keys, say
        )
        versions = uvloop.run(work)
    print(table(versions))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in versions:
            path = folder / f"{each.experiment}.{each.policy}.{each.version}.version"
            path.write_bytes(each.artifact)
    except OSError as fault:
        raise ConfigurationError(f"{fault.filename}: {fault.strerror}") from fault
    if activate:
        for each in versions:
            uvloop.run(hand_over(settings.url, settings.key_headers, each))
            print(f"{each.policy}/{each.version} serves")
    return 0


def table(versions: Sequence["Rebuilt"]) -> str:
    """Lay out a line a policy, and a note on the nets."""
    from service.tables import aligned

    rows = [["policy", "version", "learned", "left out"]]
    rows += [
        [each.policy, str(each.version), f"{each.settlements:,}", f"{each.left_out:,}"]
        for each in versions
    ]
    lines = aligned(rows)
    nets = [each.policy for each in versions if each.net is not None]
    if nets:
        lines.append(
            f"The heads of {', '.join(nets)} keep their nets, which were trained on the decisions "
            "that are left out; the next training leaves them out."
        )
    return "\n".join(lines)
