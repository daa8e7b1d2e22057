"""forage plan: the bytes of a log to come, and the processes for it."""

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
    selects: Annotated[
        float,
        Option(
            "--selects", metavar="NUMBER", parser=positive, help="Decisions a second, in the mean."
        ),
    ],
    file: Annotated[
        Path | None,
        Argument(metavar="[FILE]", help="Experiment file in TOML (one of --arms and 9 columns)."),
    ] = None,
    rewards: Annotated[
        float | None,
        Option(
            "--rewards",
            metavar="NUMBER",
            min=0.0,
            help="Of them rewarded; the others expire (a tenth).",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[int, Option("--arms", min=1, help="Arms, where there is no FILE.")] = 50,
    kind: Annotated[
        Literal["linucb", "lints", "neural_linear_ts", "auto"],
        Option("--kind", help="Kind of the policy that decides."),
    ] = "auto",
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
    as_json: AsJson = False,
) -> int:
    """Say how large a log will be, and how many processes it needs.

    Make decisions of an experiment file in memory, for made-up contexts, reward some and let the
    others expire, and take the bytes that each leaves: row, events and marks. Add what the store
    needs beside them, and multiply by rate and time. A decision is kept for `--days`, or as long as
    it can be rewarded where that is longer. Nothing is written.

    Processes, cores and what ends first follow from measured constants (docs/scaling.md): those of
    fifty arms and nine columns, on the machine that measured them. Where no number of processes
    that all fold is enough, deciders are, and beyond these several services.

        forage plan --selects 5000 --rewards 1000 --arms 50 --store postgresql
        forage plan shop.toml --selects 100 --days 30 --store redis
    """
    from service.offline.scaling import scale_plan

    rewarded = selects / 10 if rewards is None else rewards
    if rewarded > selects:
        raise BadParameter("no more decisions can be rewarded than are made", param_hint="rewards")
    found, scaled = uvloop.run(scale_plan(file, kind, store, selects, rewarded, arms, days))
    if as_json:
        print(json.dumps(found.as_json() | {"scale": scaled.as_json()}, indent=2))
    else:
        print(found.text(), scaled.text(), sep="\n\n")
    return 0
