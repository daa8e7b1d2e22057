"""forage doctor: examine a store, its settings and a running service."""

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated

import uvloop
from typer import Option

from service.cli.options import AsJson
from service.cli.running import Command
from service.observability.terminal import coloured
from service.settings import Settings


@partial(
    Command,
    summary="look at store, clocks, keys, experiments and trainer",
    epilog="Exit status: 0 when there is no fault, else 1.",
    example="forage doctor                                    # of FORAGE_STORE\n"
    "forage doctor --store redis://redis:6379/0 --url http://127.0.0.1:8000 --json",
)
def command(
    settings: Settings,
    url: Annotated[
        str | None, Option(metavar="URL", help="of a running service to ask as well")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Examine what a service needs, and a running service: the store, its durability, lock and
    layout, clocks, secrets, keys, experiments, overdue training, threads and limits. Each line is
    ok, a warning or a fault, and says what to do. The doctor changes nothing."""
    from service.maintenance.doctor import examine, text

    checks = uvloop.run(examine(settings, url))
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print(text(checks, colour=coloured(sys.stdout)))
    return 1 if any(check.level == "fault" for check in checks) else 0
