"""forage export: decisions joined with their rewards, as Parquet."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import uvloop
from typer import Option

from service.cli.options import AnyExperiment
from service.cli.running import Command, progress, run_until_stopped
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    from service.maintenance.archive.export import Exported


@partial(
    Command,
    summary="archive decisions and their rewards as Parquet",
    epilog="Exit status: 0, or 1 where the store cannot be read, is not the one archived there, or "
    "has damaged rows, which the archive leaves out.",
    example="forage export --to archive                 # Parquet, for pandas, pyarrow and DuckDB\n"
    "forage export --to archive --follow",
    settings=("store", "url"),
)
def command(
    settings: Settings,
    folder: Annotated[
        Path, Option("--to", metavar="FOLDER", help="the archive, new or one to go on")
    ],
    experiment: AnyExperiment = None,
    follow_log: Annotated[
        bool, Option("--follow", help="keep archiving final rows, until stopped")
    ] = False,
    part_rows: Annotated[int, Option(min=1, metavar="N", help="rows of a part")] = 50_000,
    part_minutes: Annotated[
        int,
        Option(
            min=1,
            metavar="M",
            help="with --follow: how long final rows wait for others of a part",
        ),
    ] = 10,
) -> int:
    """Write decisions joined with their rewards to Parquet files by day. The archive holds final
    rows once, and beside them, rewritten each time, those that may still change. The export only
    reads the store; a service may be running on it."""
    from service.maintenance.archive.archiver import Sizes
    from service.maintenance.archive.export import export, follow

    sizes = Sizes(part_rows, 60.0 * part_minutes)
    try:
        if follow_log:
            headers = settings.key_headers
            return run_until_stopped(
                follow(settings.store, folder, settings.url, experiment, sizes, headers)
            )
        with progress() as say:
            exported = uvloop.run(export(settings.store, folder, experiment, sizes, say))
    except OSError as fault:
        raise ConfigurationError(f"{folder}: {fault}") from fault
    print(table(exported))
    return 0 if all(each.unreadable == 0 for each in exported) else 1


def table(exported: Sequence["Exported"]) -> str:
    """One line an experiment."""
    from service.serving.audit_report import aligned

    rows = [["experiment", "rows", "final", "open", "parts", "MB"]]
    for each in exported:
        held = each.totals
        counts = [held.final + held.open, held.final, held.open, held.parts]
        rows.append(
            [each.experiment, *(f"{count:,}" for count in counts), f"{held.bytes / 1e6:,.1f}"]
        )
    return "\n".join(aligned(rows))
