"""forage doctor: is all as it should be?"""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from typer import Option

from service.cli.running import Command
from service.observability.terminal import coloured

if TYPE_CHECKING:
    from service.settings import Settings


def run(
    settings: "Settings",
    url: str | None = Option(None, metavar="URL", help="of a running service to ask as well"),
    as_json: bool = Option(False, "--json", help="print what was found as JSON"),
) -> int:
    import uvloop

    from service.maintenance.doctor import examine, text

    found = uvloop.run(examine(settings, url))
    if as_json:
        print(json.dumps({"checks": [asdict(each) for each in found]}, indent=2))
    else:
        print(text(found, colour=coloured(sys.stdout)))
    return 1 if any(each.level == "fault" for each in found) else 0


COMMAND = Command(
    "look at store, clocks, keys, experiments and trainer",
    run,
    description="Look at what a service needs and at a service that runs: whether the store can be "
    "reached and how durable it is set, its lock and layout, clocks, secrets, keys, experiments, "
    "training that is due and not done, threads and limits. Nothing is changed. Each line is ok, a "
    "warning or a fault, and says what to do.",
    epilog="Exit status: 0 when there is no fault, else 1.",
    example="forage doctor                                    # of FORAGE_STORE\n"
    "forage doctor --store redis://redis:6379/0 --url http://127.0.0.1:8000 --json",
    group="Operate",
)
