"""forage train: fit the nets of the policies that have one."""

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from typer import Option

from service.cli.interrupts import at_once
from service.cli.running import Command, run_until_stopped

if TYPE_CHECKING:
    from service.settings import Settings

logger = logging.getLogger("forage")


def run(
    settings: "Settings",
    follow: bool = Option(False, "--follow", help="keep training as rewards come"),
    parent: int | None = Option(None, hidden=True),
) -> int:
    with at_once():  # torch alone takes a second or two
        from service.training.trainer import run as train

    return run_until_stopped(
        _trained(
            train(
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
    run,
    example="forage train --follow    # beside services on Redis: go on as rewards come",
    group="Learn and compare",
    settings=("store", "url"),
)
