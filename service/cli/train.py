"""forage train: fit the nets of the policies that have one."""

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Annotated

from typer import Option

from service.cli.interrupts import at_once
from service.cli.running import Command, run_until_stopped
from service.settings import Settings
from service.training import expect_torch

logger = logging.getLogger("forage")


@partial(
    Command,
    summary="fit the nets of the policies that have one",
    example="forage train --follow    # beside services on Redis: go on as rewards arrive",
    settings=("store", "url"),
)
def command(
    settings: Settings,
    follow: Annotated[bool, Option("--follow", help="keep training as rewards arrive")] = False,
    parent: Annotated[int | None, Option(hidden=True)] = None,
) -> int:
    expect_torch()
    with at_once():  # torch alone takes a second or two
        from service.training.trainer import run

    headers = settings.key_headers
    work = run(settings.store, settings.url, follow=follow, parent=parent, headers=headers)
    return run_until_stopped(_report(work))


async def _report(work: Coroutine[object, object, int]) -> int:
    logger.info("%d versions handed over", await work)
    return 0
