"""forage rebuild: learn heads anew, without what should not have been learned."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import BadParameter, Option

from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress
from service.cli.values import Names, names, seconds
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.maintenance.rebuild import Condition, Rebuilt
    from service.settings import Settings

NAMES = {"key": "key", "unit": "unit", "from": "since", "to": "until"}


def _condition(text: str) -> "Condition":
    """A comma within a name or an id is none of ours."""
    from service.maintenance.rebuild import Condition

    named: dict[str, Any] = {}
    for part in re.split(rf",(?=(?:{'|'.join(NAMES)})=)", text):
        name, given, value = part.partition("=")
        if name not in NAMES or not given or not value:
            raise BadParameter(f"write it as {', '.join(f'{each}=...' for each in NAMES)}")
        if name in named:
            raise BadParameter(f"{name} is given twice: repeat --without")
        named[name] = seconds(value) if name in ("from", "to") else value
    return Condition(**{NAMES[name]: value for name, value in named.items()})


def run(
    settings: "Settings",
    without: list[Any] = Option(
        ...,
        parser=_condition,
        metavar="WHAT",
        help="key=NAME, unit=ID, from=TIME, to=TIME (ISO 8601, UTC), or several with commas: "
        "decisions that all of it is true of; may be repeated: those of either",
    ),
    experiment: str | None = Option(None, metavar="NAME", help="(the only one)"),
    policies: Names | None = Option(
        None, parser=names, metavar="A,B", help="(all that have a head and learn)"
    ),
    folder: Path = Option(Path("rebuilt"), "--to", metavar="FOLDER", help="for the versions"),
    activate: bool = Option(False, "--activate", help="hand the versions to the service, to serve"),
    report: Path | None = Option(
        None, "--json", metavar="PATH", help="write the comparison here as well"
    ),
) -> int:
    """Rebuild, print the comparison, write the versions, and hand them over where that is asked."""
    import uvloop

    from service.maintenance.rebuild import hand_over, rebuild_store

    try:
        with progress() as say:
            found = uvloop.run(
                rebuild_store(
                    settings.store, experiment, policies, without, settings.token_keys, say
                )
            )
        print(table(found))
        _write(found, folder, report)
        if activate:
            for each in found:
                uvloop.run(hand_over(settings.url, settings.key_headers, each))
                print(f"{each.policy}/{each.version} serves")
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _write(found: Sequence["Rebuilt"], folder: Path, report: Path | None) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in found:
            path = folder / f"{each.experiment}.{each.policy}.{each.version}.version"
            path.write_bytes(each.artifact)
        if report is not None:
            report.write_text(json.dumps([_told(each) for each in found], indent=2) + "\n")
    except OSError as fault:
        raise ConfigurationError(f"{fault.filename}: {fault.strerror}") from fault


def _told(each: "Rebuilt") -> dict[str, Any]:
    return {
        "experiment": each.experiment,
        "policy": each.policy,
        "version": each.version,
        **asdict(each.comparison),
    }


def table(found: Sequence["Rebuilt"]) -> str:
    """A line a policy."""
    rows = [
        ["policy", "version", "learned", "left out", "mean reward", "error", "predictions differ"]
    ]
    for each in found:
        one = each.comparison
        rows.append(
            [
                each.policy,
                str(each.version),
                f"{one.settlements:,}",
                f"{one.left_out:,}",
                _pair(one.mean_reward),
                _pair(one.error),
                f"{one.difference[0]:.4f} (most {one.difference[1]:.4f})",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    nets = [each.policy for each in found if each.comparison.net is not None]
    if nets:
        lines.append(
            f"The heads of {', '.join(nets)} see through the nets that they had, which were "
            "trained on what is left out; the next training leaves it out."
        )
    return "\n".join(lines)


def _pair(values: tuple[float | None, float | None]) -> str:
    before, after = ("-" if value is None else f"{value:.4f}" for value in values)
    return f"{before} -> {after}"


COMMAND = Command(
    "learn heads anew, without what is named",
    run,
    description="Learn the heads of an experiment's policies anew from the log, without the "
    "decisions that are named, and compare them with the present ones: settlements learned and "
    "left out, mean reward, the error on settlements that neither had learned, and how far "
    "predictions differ. The versions are written to files; with --activate the service takes them "
    "in as it takes trained ones, catches them up with the log and serves them. What is left out "
    "stays so: neither a later correction nor a later training brings it back. The store is only "
    "read; a service may be at work on it.",
    epilog="A file is handed over later with POST /experiments/{name}/policies/{policy}/versions, "
    "as long as the policy has no newer version. Revoke a key before you leave out what it asked.",
    example="forage rebuild --without key=page,from=2026-01-31\n"
    "forage rebuild --without unit=user-7 --without unit=user-9 --activate",
    group="Look after the log",
    settings=("store", "url"),
)
