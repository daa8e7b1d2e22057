"""forage train: fit the nets of the policies that have one."""

import logging
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Coroutine
from typing import Any

from service.commands.running import Command, run_until_stopped
from service.interrupts import at_once
from service.settings import Settings

logger = logging.getLogger("forage")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="keep training as rewards come")
    parser.add_argument("--parent", type=int, help=SUPPRESS)
    parser.add_argument("--url", help="where the service is (http://127.0.0.1:8000)")


def run(settings: Settings, options: dict[str, Any]) -> int:
    with at_once():  # torch alone takes a second or two
        from service.training.trainer import run

    follow, parent = options["follow"], options["parent"]
    return run_until_stopped(
        _trained(
            run(
                settings.store,
                settings.url,
                follow=follow,
                parent=parent,
                headers=settings.key_headers,
            )
        )
    )


async def _trained(work: Coroutine[Any, Any, int]) -> int:
    logger.info("%d versions handed over", await work)
    return 0


COMMAND = Command(
    "fit the nets of the policies that have one",
    add_options,
    run,
    example="forage train --follow    # beside services on Redis: go on as rewards come",
    group="Learn and compare",
)
