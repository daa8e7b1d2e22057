"""forage doctor: examine a store, its settings and a running service."""

import json
from dataclasses import asdict
from typing import Annotated

import uvloop
from typer import Option

from service.cli.options import AsJson, StoreUrl
from service.cli.running import read_settings


def doctor(
    url: Annotated[
        str | None, Option(metavar="URL", help="Address of a running service to ask as well.")
    ] = None,
    as_json: AsJson = False,
    store: StoreUrl = None,
) -> int:
    """Check store, clocks, keys, experiment files and trainer.

    Run the checks of a start without a start: the store opens, its durability, its clock, its
    secret, API keys, experiment files, torch. With `--url` ask a running service as well: its
    health, its clock, overdue training. Each line is ok, a warning or a fault, and gives a remedy.
    The doctor changes no data.

    Exit status: 0 where there is no fault, else 1.

        forage doctor
        forage doctor --store redis://redis:6379/0 --url http://127.0.0.1:8000 --json
    """
    from service.offline.doctor import examine, text

    settings = read_settings(store=store)
    checks = uvloop.run(examine(settings, url))
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(text(checks))
    return 1 if any(check.level == "fault" for check in checks) else 0
