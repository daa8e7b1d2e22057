"""forage import: give a running service logged visits of another system."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from service.cli.options import ServiceUrl, renames
from service.cli.running import progress, read_settings
from service.offline.renames import Renames

LISTED_LINES = 20
"""Refused lines that are printed, of those that the import skipped."""


def import_visits(
    path: Annotated[
        Path, Argument(metavar="FILE", help="Visits as .jsonl, .dsjson, .csv or .parquet.")
    ],
    experiment: Annotated[str, Option(metavar="NAME", help="The experiment.")],
    policy: Annotated[str, Option(metavar="NAME", help="The policy that learns from them.")],
    skip_bad: Annotated[bool, Option("--skip-bad", help="Go on after a refused line.")] = False,
    columns: Annotated[
        Renames | None,
        Option(
            "--map",
            parser=renames,
            metavar="NAME=NEW,...",
            help="Rename columns of the file; NAME= leaves one out. A NAME with a comma stands in "
            "double quotes.",
        ),
    ] = None,
    separator: Annotated[
        str, Option(metavar="CHARACTER", help="Between the cells of a CSV file; tab: a tab.")
    ] = ",",
    url: ServiceUrl = None,
) -> int:
    """Give a service logged visits to learn from.

    Read visits that another system decided, with the probability of the shown arm and the reward,
    and give them to a running service, which logs them and lets the policy learn. The same file
    again changes nothing: each visit has an id. docs/import.md describes the format.

    A .dsjson file is a decision-service log of Vowpal Wabbit or Azure Personalizer. The reward is
    -_label_cost. An arm's id is its _tag, else its feature id, else its number in _multi, from 1. A
    feature in a namespace is Namespace.name, or name where only one namespace has it; those that
    the experiment does not have are left out. A line without _label_cost is refused.

    Exit status: 0 where all lines were taken, or with `--skip-bad` all that can be; 1 where a line
    was refused: the lines before it were taken, and once it is corrected the same command goes on.

        forage import history.jsonl --experiment shop --policy linucb
        forage import raw.csv --experiment shop --policy linucb --map shown=arm,prob=propensity
        forage import logs.dsjson --experiment shop --policy linucb --skip-bad
    """
    import httpx

    from service.offline.import_client import Importing, batches
    from service.offline.visit_files import read
    from service.tables import aligned

    settings = read_settings(url=url)
    with httpx.Client(
        base_url=settings.url, timeout=60, trust_env=False, headers=settings.key_headers
    ) as client:
        importing = Importing(client, experiment, policy, skip_bad)
        known = importing.known()
        with progress() as say:
            for part in batches(read(path, known, columns, separator)):
                importing.take(part)
                if say:
                    say(f"{importing.imported + importing.duplicates:,} lines taken")
                if importing.stopped:
                    break
    counts = importing.imported, importing.duplicates, len(importing.refused)
    head = ["policy", "imported", "duplicates", "refused"]
    print("\n".join(aligned([head, [policy, *(f"{count:,}" for count in counts)]])))
    for number, why in importing.refused[:LISTED_LINES]:
        print(f"forage: {path}:{number}: {why}", file=sys.stderr)
    if (left := len(importing.refused) - LISTED_LINES) > 0:
        print(f"forage: {path}: and {left:,} more", file=sys.stderr)
    if known.ignored:
        those = ", ".join(sorted(known.ignored)[:LISTED_LINES])
        print(
            f"forage: {path}: left out: features that the experiment does not have: {those}",
            file=sys.stderr,
        )
    return 1 if importing.stopped else 0
