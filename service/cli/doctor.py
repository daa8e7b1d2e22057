"""forage doctor: examine a store, its settings and a running service."""

import json
import sys
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
    """Look at store, clocks, keys, experiments and trainer.

    Examine what a service needs, and a running service: the store, its durability, lock and layout,
    clocks, secrets, keys, experiments, overdue training, threads and limits. Each line is ok, a
    warning or a fault, and says what to do. The doctor changes nothing.

    Exit status: 0 where there is no fault, else 1.

        forage doctor
        forage doctor --store redis://redis:6379/0 --url http://127.0.0.1:8000 --json
    """
    from service.maintenance.doctor import examine, text
    from service.observability.terminal import coloured

    settings = read_settings(store=store)
    checks = uvloop.run(examine(settings, url))
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(text(checks, colour=coloured(sys.stdout)))
    return 1 if any(check.level == "fault" for check in checks) else 0
