"""forage plan: the bytes of a log to come."""

import json
import math
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from typer import Argument, BadParameter, Option

from service.cli.options import AsJson


def positive(text: str) -> float:
    """Read a number above 0. Raises BadParameter."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise BadParameter("give a number above 0")
    return number


def plan(
    file: Annotated[Path, Argument(metavar="FILE", help="Experiment file in TOML.")],
    rate: Annotated[
        float,
        Option(
            "--rate", metavar="NUMBER", parser=positive, help="Decisions a second, in the mean."
        ),
    ],
    days: Annotated[
        float,
        Option(
            "--days",
            metavar="NUMBER",
            parser=positive,
            help="Age at which decisions are trimmed (FORAGE_RETENTION_DAYS).",
        ),
    ] = 30.0,
    store: Annotated[
        Literal["sqlite", "redis", "postgresql"], Option("--store", help="Kind of the store.")
    ] = "sqlite",
    click_rate: Annotated[
        float,
        Option("--click-rate", metavar="SHARE", min=0.0, max=1.0, help="Share that gets a reward."),
    ] = 0.1,
    as_json: AsJson = False,
) -> int:
    """Say how large a log will be.

    Make decisions of an experiment file in memory, for made-up contexts, reward some and let the
    others expire, and take the bytes that each leaves: row, events and marks. Add what the store
    needs beside them, and multiply by rate and time. A decision is kept for `--days`, or as long as
    it can be rewarded where that is longer. Nothing is written.

        forage plan shop.toml --rate 100 --days 30 --store redis
        forage plan shop.toml --rate 100 --click-rate 0.02 --json
    """
    from service.offline import planning

    found = uvloop.run(planning.plan(file, store, rate, days, click_rate))
    print(json.dumps(found.as_json(), indent=2) if as_json else found.text())
    return 0
