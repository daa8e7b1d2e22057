"""forage check: faults and warnings of an experiment file, with their lines."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from service.cli.options import AsJson
from service.cli.running import Command
from service.settings import Settings


@partial(
    Command,
    summary="say what is wrong with an experiment file, and where",
    epilog="Exit status: 0 when every file can be served, 1 when one cannot (with --strict: or has "
    "a warning).",
    example="forage check shop.toml\nforage check --json experiments/*.toml",
    settings=(),
)
def command(
    settings: Settings,
    files: Annotated[list[Path], Argument(metavar="FILE", help="TOML")],
    as_json: AsJson = False,
    strict: Annotated[
        bool, Option("--strict", help="treat a warning as a fault: exit with 1")
    ] = False,
) -> int:
    """Read experiment files as `forage serve` would. Name the line, the setting, the expected value
    and the nearest known name of each fault, and warn of what is allowed but unwise. The check
    starts and writes nothing."""
    from service.maintenance.checking import check_file

    checked = [check_file(path) for path in files]
    if as_json:
        print(json.dumps({"files": [each.as_json() for each in checked]}, indent=2))
    else:
        for each in checked:
            print(each.text())
    wrong = any(each.faults or (strict and each.findings) for each in checked)
    return 1 if wrong else 0
