"""forage doctor: is all as it should be?"""

import json
from argparse import ArgumentParser
from typing import Any

from service.commands.running import Command
from service.settings import Settings


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--url", help="of a running service to ask as well")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def run(settings: Settings, options: dict[str, Any]) -> int:
    import uvloop

    from service.commands.parser import coloured
    from service.doctor import examine, text

    found = uvloop.run(examine(settings, options["url"]))
    if options["json"]:
        print(json.dumps({"checks": [each.as_json() for each in found]}, indent=2))
    else:
        import sys

        print(text(found, colour=coloured(sys.stdout)))
    return 1 if any(each.level == "fault" for each in found) else 0


COMMAND = Command(
    "look at store, clocks, keys, experiments and trainer",
    add_options,
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
