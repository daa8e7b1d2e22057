"""forage check: what is wrong with an experiment file, and where; what is allowed and unwise."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from service.commands.running import Command
from service.settings import Settings


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="TOML")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument(
        "--strict", action="store_true", help="a warning counts as a fault: exit with 1"
    )


def run(settings: Settings, options: dict[str, Any]) -> int:
    from service.checking import check_file

    checked = [check_file(path) for path in options["files"]]
    if options["json"]:
        print(json.dumps({"files": [each.as_json() for each in checked]}, indent=2))
    else:
        for each in checked:
            print(each.text())
    wrong = any(each.faults or (options["strict"] and each.findings) for each in checked)
    return 1 if wrong else 0


COMMAND = Command(
    "say what is wrong with an experiment file, and where",
    add_options,
    run,
    description="Read experiment files as `forage serve` would, and say of each fault the line, "
    "the setting, what is expected and the nearest name that there is; and of what is allowed but "
    "unwise, why. Nothing is started or written.",
    epilog="Exit status: 0 when every file can be served, 1 when one cannot (with --strict: or has "
    "a warning).",
    example="forage check shop.toml\nforage check --json experiments/*.toml",
    group="Start",
    stores=False,
)
