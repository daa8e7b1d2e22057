"""forage apply: make a running service's experiment what a file says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from service.cli.differences import answer_lines
from service.cli.options import AsJson, ServiceUrl
from service.cli.running import read_settings

if TYPE_CHECKING:
    from service.offline.definition_client import DefinitionAnswer

WOULD_CHANGE = 3
"""Exit status of a dry run that found changes."""


def apply(
    path: Annotated[Path, Argument(metavar="FILE", help="Experiment file in TOML.")],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would change, and change nothing.")
    ] = False,
    replace: Annotated[
        bool, Option("--replace", help="Empty the catalogue where the file has no arms.")
    ] = False,
    as_json: AsJson = False,
    url: ServiceUrl = None,
) -> int:
    """Make the experiment of a running service what a file says.

    Send the file and print what it changes: a line with `+` for what it adds, with `-` for what it
    removes, with `~` for what it changes. The file replaces the whole definition and the catalogue;
    what it leaves out takes its default. A file that changes nothing is not sent. The command asks
    nothing; FORAGE_KEY is its key, with the scope admin.

    Exit status: 0 where the service has this definition, 1 where it refuses the file or does not
    answer, 3 with `--dry-run` where something would change.

        forage apply shop.toml --dry-run
        forage apply shop.toml --url http://127.0.0.1:8000
    """
    from service.definition.experiment import load_definition
    from service.offline.definition_client import send_definition

    settings = read_settings(url=url)
    name, definition = load_definition(path)
    told = send_definition(name, definition, settings, dry_run=True)
    if told.changes and not dry_run:
        told = send_definition(name, definition, settings, replace=replace)
    print(_json(told) if as_json else _text(name, told, dry_run))
    return WOULD_CHANGE if dry_run and told.changes else 0


def _json(told: "DefinitionAnswer") -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(told)).decode()


def _text(name: str, told: "DefinitionAnswer", dry_run: bool) -> str:
    if not told.changes:
        return f"{name}: nothing to change"
    done = "would be" if dry_run else "is now"
    return "\n".join([*answer_lines(told), f"{name}: {done} revision {told.revision}"])
