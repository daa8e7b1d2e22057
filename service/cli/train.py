"""forage train: fit the nets of the policies that have one."""

import logging
from collections.abc import Coroutine
from typing import Annotated

from typer import Option

from service.cli.entry import dying_at_interrupts
from service.cli.options import LogFormat, LogLevel, ServiceUrl, StoreUrl
from service.cli.running import read_settings, run_until_stopped

logger = logging.getLogger("forage")


def train(
    follow: Annotated[bool, Option("--follow", help="Keep training as rewards arrive.")] = False,
    parent: Annotated[int | None, Option(hidden=True)] = None,
    store: StoreUrl = None,
    url: ServiceUrl = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Fit the nets of the policies that have one.

    forage train --follow    # beside services on Redis
    """
    from service.training import expect_torch

    settings = read_settings(store=store, url=url, log_level=log_level, log_format=log_format)
    expect_torch()
    with dying_at_interrupts():  # torch alone takes a second or two
        from service.training.trainer import run

    headers = settings.key_headers
    work = run(settings.store, settings.url, follow=follow, parent=parent, headers=headers)
    return run_until_stopped(_report(work))


async def _report(work: Coroutine[object, object, int]) -> int:
    logger.info("%d versions handed over", await work)
    return 0
