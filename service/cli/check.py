"""forage check: faults and warnings of an experiment file."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from service.cli.options import AsJson
from service.cli.running import read_settings


def check(
    files: Annotated[list[Path], Argument(metavar="FILE", help="Experiment files in TOML.")],
    as_json: AsJson = False,
    strict: Annotated[
        bool, Option("--strict", help="Treat a warning as a fault: exit with 1.")
    ] = False,
    url: Annotated[
        str | None,
        Option(
            "--url",
            metavar="URL",
            help="Ask this service which policies would start anew, and what would go; FORAGE_KEY "
            "is its key.",
        ),
    ] = None,
) -> int:
    """Name the faults of an experiment file.

    Read experiment files as `forage serve` would. Name the path (`policies.main.alpha`), the
    expected value and the nearest known name of each fault, and warn of what is allowed but unwise.
    With `--url`, warn as well of policies of a running service that would forget what they learned,
    and of arms, features, policies and rules that would go. The check starts and writes nothing.

    Exit status: 0 where every file can be served, 1 where one cannot (with `--strict`: or has a
    warning).

        forage check shop.toml
        forage check shop.toml --url http://127.0.0.1:8000
        forage check --json experiments/*.toml
    """
    from service.offline.checking import check_file, effects

    checked = [check_file(path) for path in files]
    if url is not None:
        settings = read_settings(url=url)
        for path, each in zip(files, checked, strict=True):
            if not each.faults:
                each.findings.extend(effects(path, settings))
    if as_json:
        print(json.dumps({"files": [each.as_json() for each in checked]}, indent=2))
    else:
        for each in checked:
            print(each.text())
    wrong = any(each.faults or (strict and each.findings) for each in checked)
    return 1 if wrong else 0
