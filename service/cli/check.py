"""forage check: what is wrong with an experiment file, and where; what is allowed and unwise."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Option

from service.cli.running import Command

if TYPE_CHECKING:
    from service.settings import Settings


def run(
    settings: "Settings",
    files: list[Path] = Argument(..., metavar="FILE", help="TOML"),
    as_json: bool = Option(False, "--json", help="print what was found as JSON"),
    strict: bool = Option(False, "--strict", help="a warning counts as a fault: exit with 1"),
) -> int:
    from service.maintenance.checking import check_file

    checked = [check_file(path) for path in files]
    if as_json:
        print(json.dumps({"files": [each.as_json() for each in checked]}, indent=2))
    else:
        for each in checked:
            print(each.text())
    wrong = any(each.faults or (strict and each.findings) for each in checked)
    return 1 if wrong else 0


COMMAND = Command(
    "say what is wrong with an experiment file, and where",
    run,
    description="Read experiment files as `forage serve` would, and say of each fault the line, "
    "the setting, what is expected and the nearest name that there is; and of what is allowed but "
    "unwise, why. Nothing is started or written.",
    epilog="Exit status: 0 when every file can be served, 1 when one cannot (with --strict: or has "
    "a warning).",
    example="forage check shop.toml\nforage check --json experiments/*.toml",
    group="Start",
    settings=(),
)
